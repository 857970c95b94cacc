// What tenant and daemon exchange: protocol/tenant.toml.
#pragma once

#include <bit>

#include "protocol/tenant.autogen.hpp"

namespace runlist {

using tenant::Effect;
using tenant::Kind;
using tenant::Record;

static_assert(std::endian::native == std::endian::little);

}  // namespace runlist
