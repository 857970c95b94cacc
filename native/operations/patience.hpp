// How long somebody waits for a queue: as long as it moves, however long it is.
#pragma once

#include <cstdint>

#include "core/guest.hpp"
#include "operations/queue.hpp"

namespace runlist::operations {

class Patience {
  public:
    Patience(const Queue& queue, std::int64_t most_ns)
        : queue_(queue), most_ns_(most_ns), done_(queue.done()), since_ns_(monotonic_ns()) {}

    bool is_over() {
        const std::int64_t now = monotonic_ns();
        if (const std::uint64_t done = queue_.done(); done != done_) {
            done_ = done;
            since_ns_ = now;
        }
        return now - since_ns_ > most_ns_;
    }

  private:
    const Queue& queue_;
    std::int64_t most_ns_;
    std::uint64_t done_;
    std::int64_t since_ns_;
};

}  // namespace runlist::operations
