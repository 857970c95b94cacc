// A touch: a tiny piece of work of the program's own, on a stream of ours, which has the GPU load the program's context
// before its work is there.
//
// It is made in whatever thread reads from a socket, so nothing here waits: what cannot be had at once is left. Where
// the driver refuses anything once, there are no touches any more.
#pragma once

#include <cstdint>

#include "cap/calls.hpp"

namespace runlist::hooks {

// At a launch, which is a safe time: makes what a touch needs in the current context, where it is not there yet. That
// context is the one that is touched from now on.
void prepare_touch(const cap::Calls& calls);

// Touches that context for work that comes in so many nanoseconds: now, or a little before.
void touch(std::int64_t lead_ns);

// Before a context is destroyed.
void forget_touch(CUcontext context);

// While it lives there are no touches: a context may end. Then `forget` those of its GPU.
class NoTouch {
  public:
    NoTouch();
    ~NoTouch();
    NoTouch(const NoTouch&) = delete;
    NoTouch& operator=(const NoTouch&) = delete;
    void forget(const cap::Calls& calls, CUdevice device) const;

  private:
    bool locked_;
};

}  // namespace runlist::hooks
