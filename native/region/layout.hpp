// The bytes of a region, which the daemon knows as well: protocol/region.toml.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "protocol/region.autogen.hpp"

namespace runlist::region {

inline constexpr std::uint64_t kFileBytes = sizeof(File);

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::endian::native == std::endian::little);

}  // namespace runlist::region
