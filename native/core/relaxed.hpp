// The order of memory for what orders nothing else.
#pragma once

#include <atomic>

namespace runlist {

inline constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace runlist
