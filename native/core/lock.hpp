// A lock for state that signal handlers and children of fork also use.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "core/guest.hpp"
#include "core/space.hpp"

namespace runlist {

// Who is calling. Asked each time: a copy would be wrong in a child.
struct Caller {
    std::uint32_t space;
    std::int32_t thread;

    static Caller here() { return {own_space(), static_cast<std::int32_t>(call(SYS_gettid))}; }
};

// The word says who holds it, so a thread notices that it was interrupted while it held the lock, and a child of fork
// that the holder is in its parent. A child that shares its parent's memory waits like a thread. Nobody waits for ever:
// a holder may have been stopped, or left by a long jump.
class Lock {
  public:
    static constexpr std::int64_t kPatienceNs = 100'000'000;

    // 0, -EDEADLK when this thread holds it already, or -EBUSY when somebody else did for so long.
    int acquire(Caller caller, std::int64_t patience_ns = kPatienceNs) {
        const std::uint64_t mine = held_by(caller);
        std::int64_t began = 0;
        std::int64_t pause = kPauseNs;
        for (int attempt = 0;; ++attempt) {
            std::uint64_t holder = 0;
            if (holder_.compare_exchange_strong(holder, mine, std::memory_order_acquire)) return 0;
            if (holder == mine) return -EDEADLK;
            if (holder >> 32 != mine >> 32) {
                if (holder_.compare_exchange_strong(holder, mine, std::memory_order_acquire)) return 0;
                continue;
            }
            if (patience_ns == 0) return -EBUSY;
            if (attempt < kYields) {
                call(SYS_sched_yield);
                continue;
            }
            const std::int64_t now = monotonic_ns();
            if (began == 0) began = now;
            if (attempt >= kAttempts && now - began >= patience_ns) return -EBUSY;
            pause_ns(pause);  // yielding does not help a holder of lower real-time priority
            pause = std::min(pause + pause / 8, kLongestPauseNs);
        }
    }

    void release() { holder_.store(0, std::memory_order_release); }

    bool is_free() const { return holder_.load(std::memory_order_relaxed) == 0; }

  private:
    static constexpr int kYields = 64;
    static constexpr int kAttempts = 1000;  // at least: on a busy machine the time may pass without us, and the holder
    static constexpr std::int64_t kPauseNs = 50'000;
    static constexpr std::int64_t kLongestPauseNs = 200'000;

    static std::uint64_t held_by(Caller caller) {
        return std::uint64_t{caller.space} << 32 | static_cast<std::uint32_t>(caller.thread);
    }

    std::atomic<std::uint64_t> holder_{0};
};

}  // namespace runlist
