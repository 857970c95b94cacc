// The control commands of the emulated driver, as a table.
#pragma once

#include <cstdint>

#include "device/rm/call.hpp"

namespace emulator {

struct Control : rm::Control {
    Time delay;
    std::uint32_t (*handle)(ControlCall& call);
};

// Nothing for a command that the driver does not know.
const Control* find_control(std::uint32_t command);

}  // namespace emulator
