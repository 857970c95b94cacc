// The controls of the context-switch log: rows of the table in rm/controls.cpp.
#pragma once

#include "device/rm/call.hpp"

namespace emulator {

// On a subdevice.
std::uint32_t get_time(ControlCall& call);
std::uint32_t bind_event_buffer(ControlCall& call);
// On an event buffer.
std::uint32_t enable_event_buffer(ControlCall& call);
std::uint32_t flush_event_buffer(ControlCall& call);

}  // namespace emulator
