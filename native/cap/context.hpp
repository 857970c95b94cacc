// Which caps hold, and what the gate knows of a CUDA context: its meter, and whose clock it goes by.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "cap/calls.hpp"
#include "cap/clock.hpp"
#include "cap/meter.hpp"
#include "core/lock.hpp"
#include "region/layout.hpp"

namespace runlist::cap {

// What the region has of a process on a GPU; null for what it has not.
struct Account {
    const region::Limit* cap = nullptr;               // the GPU's own
    std::atomic<std::uint64_t>* next_turn = nullptr;  // null: the process has a clock of its own
    std::atomic<std::uint64_t>* gpu_ns = nullptr;
};

using Accounts = Account (*)(const std::uint8_t (&uuid)[16]);

extern constinit std::atomic<const region::Limit*> limit;  // on all GPUs; null: none

// From now on this limit holds on each GPU that has none of its own, in ten-thousandths of its time; it may change at
// any time. At kWhole only GPUs that have their own are capped, above it none.
void start(const region::Limit& cap, Accounts accounts);

// Whether there is a cap, on this GPU or another. False: a launch is no business of ours.
inline bool on() {
    const region::Limit* one = limit.load(std::memory_order_acquire);
    return one != nullptr && one->value.load(std::memory_order_relaxed) <= kWhole;
}

// An entry of a table that has one for each context of each copy of libcuda. Everything below the lock is under it; the
// atomics are looked at without.
struct Context {
    std::atomic<CUcontext> handle{};   // null: free
    std::atomic<const void*> copy{};   // of libcuda: one of its functions
    std::atomic<std::int64_t> used{};  // host time of the last launch
    std::atomic<int> waiting{};        // threads that wait for a turn
    std::atomic<bool> stuck{};         // somebody waited for the lock in vain, and nobody has had it since
    Lock lock;
    std::uint64_t id = 0;  // tells it from an earlier one of the same handle
    std::atomic<CUdevice> device{};
    std::uint32_t space = 0;
    std::uint32_t epoch = 0;  // contexts that had this entry before
    Account account;
    std::atomic<std::uint64_t> own_turn{};  // the clock of a process that shares none
    Meter meter;

    // The cap that holds on its GPU, from kWhole on none.
    std::uint64_t cap() const;

    Clock clock() { return Clock(account.next_turn != nullptr ? *account.next_turn : own_turn); }

    // Takes the lock. False where a signal interrupted the thread that holds it, while the driver does not answer
    // whoever does, or where it was left behind.
    bool enter(Caller caller);

    // The entry of the context that this stream belongs to, or of the current one for a default stream, entered.
    // nullptr where there is none.
    static Context* enter(const Calls& calls, CUstream stream, Caller caller, std::int64_t now);
};

// To be called before a context is destroyed: its events go with it.
void destroyed(CUcontext context);

// To be called after the primary context of a device was released or reset.
void released(const Calls& calls, CUdevice device);

}  // namespace runlist::cap
