// The newest operations, and how long client 0's newest stretches of work were.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "include/runlist_operations.h"
#include "operations/calls.hpp"
#include "operations/spin.hpp"

namespace runlist::operations {

struct Logged {
    CUevent event;
    CUcontext context;
    const Calls* calls;
    std::uint64_t number;  // 0: free
};

// The GPU's time beside ours: an event that was seen to be done at a moment.
struct Clock {
    CUcontext context;
    CUstream stream;
    CUevent event;
    std::int64_t at_ns;     // 0: none
    std::int64_t again_ns;  // not to be set before
};

struct Log {
    static constexpr std::uint64_t kRoom = 4096;
    Spin lock;
    std::uint64_t written, taken, lost;
    std::array<rl_operation, kRoom> ring;
    std::array<Logged, 256> waiting;
    std::array<Clock, 4> clocks;  // of the newest contexts; the dispatcher's alone, but for forget_logged

    // Up to which operation it is known when they were done, as far as that will be. Where it takes too long, all that
    // is there: what is not taken is overwritten.
    std::uint64_t known() const {
        if (written - taken > kRoom / 2) return written;
        std::uint64_t before = written + 1;
        for (const Logged& one : waiting) {
            if (one.number != 0 && one.number < before) before = one.number;
        }
        return before - 1;
    }
};

// How long client 0's newest stretches of work were. Any of its threads writes; one at a time reads, and clears.
struct Latencies {
    static constexpr std::uint64_t kRoom = 1024;
    std::atomic<std::uint64_t> written;
    std::array<std::atomic<std::uint64_t>, kRoom> ring;
    Spin taking;
    std::uint64_t taken;

    void put(std::uint64_t latency_ns) { ring[written.fetch_add(1) % kRoom].store(latency_ns + 1); }

    int take(std::uint64_t* latencies, int most) {
        const Held held(taking);
        const std::uint64_t until = written.load();
        if (until - taken > kRoom) taken = until - kRoom;
        int count = 0;
        for (; count < most && taken < until; ++taken) {
            const std::uint64_t one = ring[taken % kRoom].exchange(0);
            if (one != 0) latencies[count++] = one - 1;  // else somebody is about to write it
        }
        return count;
    }
};

}  // namespace runlist::operations
