// NV_STATUS: the answers of the driver that are given here.
#pragma once

#include "shared/protocol.hpp"

namespace emulator {

namespace status = rm::status;

}  // namespace emulator
