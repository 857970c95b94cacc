// A copy engine: one transfer after the other, in the order in which they became ready. Not time-sliced.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "model/runlist.hpp"

namespace emulator {

class CopyEngine {
  public:
    using Done = std::function<void(Time)>;

    // `key` names whose transfer it is, for `cancel`.
    void submit(Time at, std::uint64_t key, Time duration, Done done) {
        queue_.push_back({key, duration, std::move(done)});
        if (queue_.size() == 1) ends_ = std::max(at, ends_) + duration;
    }

    void cancel(std::uint64_t key) {
        const bool active = !queue_.empty() && queue_.front().key == key;
        std::erase_if(queue_, [key](const Transfer& transfer) { return transfer.key == key; });
        // A transfer that has begun takes its time, though nobody hears of its end.
        if (active && !queue_.empty()) ends_ += queue_.front().duration;
    }

    Time next_event() const { return queue_.empty() ? kNever : ends_; }

    // Finishes the transfer at the head, which ends at `next_event()`.
    void step() {
        const Time at = ends_;
        const Done done = std::move(queue_.front().done);
        queue_.pop_front();
        if (!queue_.empty()) ends_ = at + queue_.front().duration;
        done(at);
    }

  private:
    struct Transfer {
        std::uint64_t key;
        Time duration;
        Done done;
    };
    std::deque<Transfer> queue_;
    Time ends_ = 0;
};

}  // namespace emulator
