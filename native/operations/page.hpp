// What the clients know of one another. Threads of one process have it in that process' memory; processes under MPS map
// one file, whose bytes are nobody's word: each number is taken as it is at a moment, and none is a place or a length.
//
// Client 0's part is written by its own process: two stores for each of its operations. Whether it is idle is asked of
// the driver by a thread of its process, and only while somebody wants to know.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/guest.hpp"

namespace runlist::operations {

inline constexpr int kClients = 16;

enum class Kind : std::uint32_t { kKernel = 0, kGraph = 1, kCopy = 2, kFill = 3, kEvent = 4 };

inline constexpr std::uint32_t kClasses = 3;  // unknown, compute, memory

// What is known of an operation before it runs.
struct Cost {
    std::uint32_t of_class = 0;
    std::uint32_t sms = 0;
    std::int64_t duration_ns = 0;
};

inline constexpr std::uint32_t kAnySms = ~0u;

struct Admission {
    std::atomic<std::uint32_t> beside{1u << (3 * 1 + 2) | 1u << (3 * 2 + 1)};
    std::atomic<std::uint32_t> sms{kAnySms};
    std::atomic<std::uint32_t> copies{1};
    std::atomic<std::int64_t> gate_ns{-1};
    std::atomic<std::int64_t> ahead_ns{0};  // 0: any
    std::atomic<std::int64_t> rest_ns{0};
};

// Of a thread that sleeps until it is rung. Who rings says before what for.
struct Bell {
    std::atomic<std::uint32_t> rung{0};
    std::atomic<std::uint32_t> sleeping{0};
};

inline constexpr std::int64_t kLongestRestNs = 1'000'000'000;

struct alignas(64) First {
    std::atomic<std::uint32_t> newest{0};                // its class and, from the third bit on, its SMs
    std::atomic<std::uint32_t> worked{0};                // it gave something to the driver since that was asked
    std::atomic<std::uint32_t> idle{1};                  // the driver said so
    std::atomic<std::int64_t> rests_ns{0};               // when it was seen to have ended all; 0: long ago
    alignas(64) std::atomic<std::int64_t> wanted_ns{0};  // until when somebody wants to know
    Bell bell;

    bool is_working() const {
        return worked.load(std::memory_order_acquire) != 0 || idle.load(std::memory_order_acquire) == 0;
    }
    // It works, or has not rested for so long. A time that no clock has had is nobody's word. Once it has rested nobody
    // needs to know the time again until it works.
    bool is_busy(std::int64_t rest_ns) {
        if (is_working()) return true;
        std::int64_t since = rests_ns.load(std::memory_order_relaxed);
        if (rest_ns <= 0 || since == 0) return false;
        const std::int64_t now = monotonic_ns();
        if (since > 0 && since <= now && now - since < (rest_ns < kLongestRestNs ? rest_ns : kLongestRestNs))
            return true;
        rests_ns.compare_exchange_strong(since, 0, std::memory_order_relaxed);
        return false;
    }
    void works(const Cost& cost) {
        newest.store(cost.of_class % kClasses | cost.sms << 2, std::memory_order_relaxed);
        worked.store(1, std::memory_order_release);
    }
    void has_ended(std::int64_t now) {
        rests_ns.store(now, std::memory_order_relaxed);
        idle.store(1, std::memory_order_release);
    }
    // Nobody answers for it any more: no other waits.
    void rests() {
        worked.store(0, std::memory_order_release);
        has_ended(0);
    }
};

// What another client has in flight.
struct alignas(64) Other {
    std::atomic<std::uint32_t> sms{0};
    std::atomic<std::int64_t> duration_ns{0};
};

struct Page {
    std::atomic<std::uint64_t> magic;  // last of all when it is made
    Admission admission;
    First first;
    std::array<Other, kClients> others;
};

inline constexpr std::uint64_t kMagic = 0x33'5350'4F4C'52;  // "RLOPS3"

inline constexpr std::int64_t kLongestFlightNs = std::int64_t{1} << 56;  // whatever a page says

// What the other clients whose processes live have in flight, together.
struct Flying {
    std::uint64_t sms = 0;
    std::int64_t duration_ns = 0;
};

inline Flying flying(const Page& page, std::uint64_t live) {
    Flying all;
    constexpr std::uint64_t kOthers = (std::uint64_t{1} << kClients) - 2;
    for (std::uint64_t left = live & kOthers; left != 0; left &= left - 1) {
        const Other& other = page.others[static_cast<std::size_t>(std::countr_zero(left))];
        all.sms += other.sms.load(std::memory_order_relaxed);
        const std::int64_t one = other.duration_ns.load(std::memory_order_relaxed);
        all.duration_ns += one < 0 ? 0 : one > kLongestFlightNs ? kLongestFlightNs : one;
    }
    return all;
}

// Whether the rule lets an operation of another client go beside a busy client 0, and beside what is in flight.
inline bool admits(const Page& page, Kind kind, const Cost& cost, std::uint64_t live) {
    if (kind == Kind::kEvent) return true;
    const Admission& rule = page.admission;
    if (kind == Kind::kCopy || kind == Kind::kFill) return rule.copies.load(std::memory_order_relaxed) != 0;
    const std::uint32_t first = page.first.newest.load(std::memory_order_relaxed) & 3;
    if (first >= kClasses) return false;
    if ((rule.beside.load(std::memory_order_relaxed) >> (3 * first + cost.of_class % kClasses) & 1) == 0) return false;
    const Flying others = flying(page, live);
    const std::int64_t gate_ns = rule.gate_ns.load(std::memory_order_relaxed);
    return cost.sms + others.sms <= rule.sms.load(std::memory_order_relaxed) &&
           (gate_ns < 0 || cost.duration_ns + others.duration_ns <= gate_ns);
}

// A page of this process alone; or the one of a file, as its client: nullptr, with `why` set, where that cannot be.
Page* make_page();
Page* map_page(const char* path, int client, const char*& why);

// Which clients' processes of a mapped page live, as bits. All, where there is no file.
std::uint64_t living();

}  // namespace runlist::operations
