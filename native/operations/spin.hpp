// A lock for a few instructions. Its holder is never in a signal handler, nor in a child of fork: those have no engine.
#pragma once

#include <atomic>

#include "core/guest.hpp"

namespace runlist::operations {

class Spin {
  public:
    void lock() {
        for (int attempt = 1; held_.exchange(true, std::memory_order_acquire); ++attempt) {
            if (attempt % 64 == 0) call(SYS_sched_yield);
        }
    }
    void unlock() { held_.store(false, std::memory_order_release); }

  private:
    std::atomic<bool> held_{false};
};

class Held {
  public:
    explicit Held(Spin& spin) : spin_(spin) { spin_.lock(); }
    ~Held() { spin_.unlock(); }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

  private:
    Spin& spin_;
};

}  // namespace runlist::operations
