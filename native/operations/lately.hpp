// What was done lately of a client, and where others are told of it (telling.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "region/layout.hpp"

namespace runlist::operations {

// What was counted up to when it was last told, and the newest waits since then. The dispatcher's alone.
struct Lately {
    static constexpr std::size_t kWaits = 255;
    std::uint64_t launched, deferred, sm_ns;
    std::uint64_t waited;  // how many did
    std::array<std::uint64_t, kWaits> waits;

    void add_wait(std::uint64_t wait_ns) { waits[waited++ % kWaits] = wait_ns; }

    // The middle one, 0 for none; then there are none any more.
    std::uint64_t middle_wait() {
        const auto count = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(waited, kWaits));
        waited = 0;
        if (count == 0) return 0;
        const auto middle = waits.begin() + count / 2;
        std::nth_element(waits.begin(), middle, waits.begin() + count);
        return *middle;
    }
};

// Where others are told of the clients: this process' slot and place in the region; null where it has none.
struct Telling {
    bool known;
    region::Slot* slot;
    region::Operations* operations;
};

}  // namespace runlist::operations
