// The clocks: the model runs on the monotonic one, what is told to users is on the wall's.
#pragma once

#include <ctime>
#include <limits>

#include "shared/protocol.hpp"

namespace emulator {

inline Time read_clock(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<Time>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

inline Time clock_now() { return read_clock(CLOCK_MONOTONIC); }
inline Time wall_now() { return read_clock(CLOCK_REALTIME); }

// What has to be added to a time of the model to have it in CLOCK_REALTIME. Looks more than once: between two clocks'
// readings anything may happen to the process.
inline Time wall_offset() {
    Time offset = 0;
    Time narrowest = std::numeric_limits<Time>::max();
    for (int i = 0; i < 3; ++i) {
        const Time before = clock_now();
        const Time wall = wall_now();
        const Time width = clock_now() - before;
        if (width >= narrowest) continue;
        narrowest = width;
        offset = wall - before - width / 2;
    }
    return offset;
}

}  // namespace emulator
