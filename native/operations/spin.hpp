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

// Two at once, which may be one; in the order of their addresses, whoever takes them.
class HeldBoth {
  public:
    HeldBoth(Spin& one, Spin& other) : first_(&one < &other ? one : other), second_(&one < &other ? other : one) {
        first_.lock();
        if (&second_ != &first_) second_.lock();
    }
    ~HeldBoth() {
        if (&second_ != &first_) second_.unlock();
        first_.unlock();
    }
    HeldBoth(const HeldBoth&) = delete;
    HeldBoth& operator=(const HeldBoth&) = delete;

  private:
    Spin& first_;
    Spin& second_;
};

}  // namespace runlist::operations
