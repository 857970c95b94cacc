// A lock for state that signal handlers and children of fork also use.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "core/guest.hpp"

namespace runlist {

// Who is calling. Asked of the kernel each time: a copy would be wrong in a child.
struct Caller {
    std::int32_t process;
    std::int32_t thread;

    static Caller here() {
        return {static_cast<std::int32_t>(call(SYS_getpid)), static_cast<std::int32_t>(call(SYS_gettid))};
    }
};

// The word says who holds it, so a thread notices that it was interrupted while it held the lock, and a child that the
// holder is in its parent. Nobody waits for ever: a holder may have been stopped, or left by a long jump.
class Lock {
  public:
    // 0, -EDEADLK when this thread holds it already, or -EBUSY.
    int acquire(Caller caller) {
        const std::uint64_t mine = held_by(caller);
        for (int attempt = 0; attempt < kAttempts;) {
            std::uint64_t holder = 0;
            if (holder_.compare_exchange_strong(holder, mine, std::memory_order_acquire)) return 0;
            if (holder == mine) return -EDEADLK;
            if (holder >> 32 != mine >> 32) {
                if (holder_.compare_exchange_strong(holder, mine, std::memory_order_acquire)) return 0;
                continue;
            }
            if (++attempt < kYields) {
                call(SYS_sched_yield);
            } else {
                pause_ns(kPauseNs);  // yielding does not help a holder of lower real-time priority
            }
        }
        return -EBUSY;
    }

    void release() { holder_.store(0, std::memory_order_release); }

  private:
    static constexpr int kYields = 64;
    static constexpr int kAttempts = 1000;
    static constexpr std::int64_t kPauseNs = 50'000;

    static std::uint64_t held_by(Caller caller) {
        return std::uint64_t{static_cast<std::uint32_t>(caller.process)} << 32 |
               static_cast<std::uint32_t>(caller.thread);
    }

    std::atomic<std::uint64_t> holder_{0};
};

}  // namespace runlist
