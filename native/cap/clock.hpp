// The cap's clock: when the next work may start, so that GPU time stays below a share of wall time.
//
// The generic cell rate algorithm over one word that a whole process tree shares: GPU time t at the cap c moves the
// word by t / c, and work may start once the word is not ahead of now. One compare-and-swap a step: whoever is killed,
// is killed before or after it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "protocol/region.autogen.hpp"

namespace runlist::cap {

inline constexpr std::int64_t kMicrosecond = 1'000;
inline constexpr std::int64_t kMillisecond = 1'000'000;
inline constexpr std::uint64_t kWhole = region::kCapUnit;  // the whole GPU, in the parts that caps are given in

// Wall time that this GPU time is worth at a cap, both in ns. A cap of 0 counts as the smallest there is.
inline std::int64_t wall(std::int64_t gpu_ns, std::uint64_t cap) {
    return gpu_ns * static_cast<std::int64_t>(kWhole) /
           static_cast<std::int64_t>(std::clamp<std::uint64_t>(cap, 1, kWhole));
}

class Clock {
  public:
    // Wall time that an idle GPU saves up: what runs at full rate after a pause before the cap holds again.
    static constexpr std::int64_t kSavedNs = 50 * kMillisecond;

    // The farthest that the next turn can be ahead. A measurement that went wrong must not stop a program for hours,
    // and a word that is farther ahead is none of ours: the machine was restarted since, and its clock with it.
    static constexpr std::int64_t kAheadNs = 60'000 * kMillisecond;

    explicit Clock(std::atomic<std::uint64_t>& next) : next_(next) {}

    // Takes a turn that is worth `cost` of wall time, and returns 0; or returns for how long it is still somebody
    // else's. `saved`: how much must have been saved up for it.
    std::int64_t take(std::int64_t now, std::int64_t saved, std::int64_t cost) {
        std::uint64_t word = next_.load(std::memory_order_relaxed);
        for (;;) {
            const std::int64_t next = from(word, now, saved);
            if (const std::int64_t early = next + saved - now; early > 0) return early;
            if (swap(word, std::max(next, now - kSavedNs) + cost, now)) return 0;
        }
    }

    // Wall time that is saved up: how much can be taken without a wait.
    std::int64_t saved(std::int64_t now) const { return now - from(next_.load(std::memory_order_relaxed), now, 0); }

    // Adds to what was charged, or takes from it: the work took another time than it was charged for.
    void correct(std::int64_t now, std::int64_t cost) {
        std::uint64_t word = next_.load(std::memory_order_relaxed);
        while (!swap(word, from(word, now, 0) + cost, now)) {
        }
    }

    // Lets the next turn be now, if it is later.
    void forgive(std::int64_t now) {
        std::uint64_t word = next_.load(std::memory_order_relaxed);
        while (static_cast<std::int64_t>(word) > now && !swap(word, now, now)) {
        }
    }

  private:
    static std::int64_t from(std::uint64_t word, std::int64_t now, std::int64_t saved) {
        const auto next = static_cast<std::int64_t>(word);
        return next <= 0 || next > now + kAheadNs ? now - saved : next;  // never used, or none of ours: begin now
    }

    bool swap(std::uint64_t& word, std::int64_t next, std::int64_t now) {
        const auto wanted = static_cast<std::uint64_t>(std::clamp<std::int64_t>(next, 1, now + kAheadNs));
        return next_.compare_exchange_weak(word, wanted, std::memory_order_relaxed);
    }

    std::atomic<std::uint64_t>& next_;
};

}  // namespace runlist::cap
