// The compute cap in the process: work on the GPU waits at the launch until the process tree's share of GPU time has
// room for it. What it takes is measured (see meter.hpp), not guessed from its size; until it was measured it is
// charged as work of its kind took before.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cap/calls.hpp"
#include "cap/context.hpp"
#include "cap/meter.hpp"

namespace runlist::cap {

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

}  // namespace runlist::cap
