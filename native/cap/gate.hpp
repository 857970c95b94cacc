// The compute cap in the process: work on the GPU waits at the launch until the process tree's share of GPU time has
// room for it. What it takes is measured (see meter.hpp), not guessed from its size; until it was measured it is
// charged as work of its kind took before.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "cap/calls.hpp"
#include "cap/clock.hpp"
#include "cap/meter.hpp"
#include "region/layout.hpp"

namespace runlist::cap {

// What the region has of a process on a GPU; null for what it has not.
struct Account {
    const region::Limit* cap = nullptr;               // the GPU's own
    std::atomic<std::uint64_t>* next_turn = nullptr;  // null: the process has a clock of its own
    std::atomic<std::uint64_t>* gpu_ns = nullptr;
};

using Accounts = Account (*)(const std::uint8_t (&uuid)[16]);

extern constinit std::atomic<const region::Limit*> limit;

// From now on this limit holds on each GPU that has none of its own, in ten-thousandths of its time; it may change at
// any time. At kWhole only GPUs that have their own are capped, above it none.
void start(const region::Limit& cap, Accounts accounts);

// Whether there is a cap, on this GPU or another. False: a launch is no business of ours.
inline bool on() {
    const region::Limit* one = limit.load(std::memory_order_relaxed);
    return one != nullptr && one->value.load(std::memory_order_relaxed) <= kWhole;
}

struct Context;

// One launch, copy or fill. It waits for its turn when it is made; call launched() right after the real call. Nothing
// happens while the stream is capturing, in a signal handler that interrupted another turn of its thread, or where the
// context cannot be measured. `work` tells kinds of work apart: the function, the graph; nullptr for anything else.
class Turn {
  public:
    Turn(const Calls& calls, CUstream stream, bool per_thread, const void* work = nullptr);
    void launched(bool ok);

  private:
    const Calls& calls_;
    Meter::Lane lane_;
    Context* context_ = nullptr;  // null: it went by
    std::uint32_t epoch_ = 0;
    Meter::Ticket ticket_;
};

// To be called before a stream is made to wait (for an event, a value in memory, a function of the host): the wait is
// not to be measured as part of the work around it. Costs as much as on() while there is no cap.
void divide(const Calls& calls, CUstream stream, bool per_thread);

// To be called before a context is destroyed: its events go with it.
void destroyed(CUcontext context);

// To be called after the primary context of a device was released or reset.
void released(const Calls& calls, CUdevice device);

}  // namespace runlist::cap
