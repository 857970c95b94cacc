// The host's time, as the cap uses it.
#pragma once

#include <cstdint>

#include "core/guest.hpp"

namespace runlist::cap {

struct Host {
    std::int64_t (*now)();           // CLOCK_MONOTONIC, ns
    void (*sleep)(std::int64_t ns);  // may return early
};

inline constinit Host host{.now = monotonic_ns, .sleep = pause_ns};  // the checks simulate it

}  // namespace runlist::cap
