// The functions of a copy of libcuda that the cap itself uses, unhooked.
#pragma once

#include <cuda.h>

namespace runlist::cap {

struct Calls {
#define NEEDED(name, symbol) decltype(&::name) name;
#define USEFUL(name, symbol) decltype(&::name) name;
#include "cap/calls.inc"
#undef NEEDED
#undef USEFUL

    // Those that `find(symbol)` finds; null pointers for the others. The copy must stay loaded, and what this returns
    // at its address, for as long as it is used.
    template <typename Find>
    static Calls of(const Find& find) {
        return {
#define NEEDED(name, symbol) .name = reinterpret_cast<decltype(&::name)>(find(symbol)),
#define USEFUL(name, symbol) NEEDED(name, symbol)
#include "cap/calls.inc"
#undef NEEDED
#undef USEFUL
        };
    }

    // Whether all that is needed is there.
    bool complete() const {
#define NEEDED(name, symbol) &&name != nullptr
#define USEFUL(name, symbol)
        return true
#include "cap/calls.inc"
            ;
#undef NEEDED
#undef USEFUL
    }
};

// While it lives, our own calls disturb no capture: neither ones of this thread nor, in global mode, those of others.
class Relaxed {
  public:
    explicit Relaxed(const Calls& calls) : calls_(calls) { exchange(); }
    ~Relaxed() { exchange(); }
    Relaxed(const Relaxed&) = delete;
    Relaxed& operator=(const Relaxed&) = delete;

  private:
    void exchange() {
        if (calls_.cuThreadExchangeStreamCaptureMode != nullptr) calls_.cuThreadExchangeStreamCaptureMode(&mode_);
    }

    const Calls& calls_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace runlist::cap
