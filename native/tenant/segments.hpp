// The open segments of a process.
#pragma once

#include <cstdint>
#include <optional>

namespace runlist {

class Segments {
  public:
    // False when there is no room.
    bool begin(std::int32_t thread, std::int32_t priority) {
        if (count_ == kRoom) return false;
        open_[count_++] = {thread, priority};
        return true;
    }

    // Ends the innermost of a thread. False when it has none.
    bool end(std::int32_t thread) {
        for (int index = count_ - 1; index >= 0; --index) {
            if (open_[index].thread != thread) continue;
            for (--count_; index < count_; ++index) open_[index] = open_[index + 1];
            return true;
        }
        return false;
    }

    // The priority of the innermost of a thread, or none.
    std::optional<std::int32_t> priority(std::int32_t thread) const {
        for (int index = count_ - 1; index >= 0; --index) {
            if (open_[index].thread == thread) return open_[index].priority;
        }
        return std::nullopt;
    }

    // The highest of the threads' innermost priorities, or none.
    std::optional<std::int32_t> priority() const {
        std::optional<std::int32_t> highest;
        for (int index = 0; index < count_; ++index) {
            if (innermost(index) && (!highest || open_[index].priority > *highest)) highest = open_[index].priority;
        }
        return highest;
    }

  private:
    struct Segment {
        std::int32_t thread;
        std::int32_t priority;
    };

    bool innermost(int index) const {
        for (int later = index + 1; later < count_; ++later) {
            if (open_[later].thread == open_[index].thread) return false;
        }
        return true;
    }

    static constexpr int kRoom = 64;
    Segment open_[kRoom]{};  // of all threads, in the order in which they began
    int count_ = 0;
};

}  // namespace runlist
