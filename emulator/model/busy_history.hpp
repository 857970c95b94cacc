// How long something was busy in each of the sampling periods of the last seconds: what NVML's figures are made of.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "model/timing.hpp"
#include "shared/protocol.hpp"

namespace emulator {

class BusyHistory {
  public:
    // Period n is the time from n to n + 1 times kSamplingPeriod. The last one that has ended at `now`:
    static std::int64_t last_period(Time now) { return now / timing::kSamplingPeriod - 1; }
    static Time end_of(std::int64_t period) { return (period + 1) * timing::kSamplingPeriod; }

    // It was busy from `from` to `to`. In the order of time, without overlaps.
    void add(Time from, Time to) {
        const std::int64_t last = to / timing::kSamplingPeriod;
        for (std::int64_t n = std::max(from / timing::kSamplingPeriod, last - timing::kSamples); n <= last; ++n) {
            Slot& slot = slot_of(n);
            if (slot.period != n) slot = {n, 0};
            slot.busy += std::min(to, end_of(n)) - std::max(from, end_of(n - 1));
        }
    }

    // Nanoseconds of one of the last kSamples periods.
    Time busy(std::int64_t period) const {
        if (period < 0) return 0;
        const Slot& slot = const_cast<BusyHistory*>(this)->slot_of(period);
        return slot.period == period ? slot.busy : 0;
    }

    static std::uint32_t percent(Time busy) {
        constexpr Time kPeriod = timing::kSamplingPeriod;
        return static_cast<std::uint32_t>(std::min<Time>(100, (100 * busy + kPeriod / 2) / kPeriod));
    }

  private:
    struct Slot {
        std::int64_t period = -1;
        Time busy = 0;
    };
    // One more than is asked for: the period that has not ended.
    static constexpr std::int64_t kSlots = timing::kSamples + 1;
    Slot& slot_of(std::int64_t period) { return slots_[static_cast<std::size_t>(period % kSlots)]; }

    std::array<Slot, kSlots> slots_{};
};

}  // namespace emulator
