// The control commands of the emulated driver, as a table.
#pragma once

#include <cstdint>

#include "device/rm/call.hpp"

namespace emulator {

struct Control {
    std::uint32_t command;
    std::uint32_t cls;  // of the object
    std::uint32_t parameter_bytes;
    bool privileged;
    Time delay;
    std::uint32_t (*handle)(ControlCall& call);
};

// Nothing for a command that the driver does not know.
const Control* find_control(std::uint32_t command);

}  // namespace emulator
