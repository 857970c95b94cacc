// The functions of a copy of libcuda that the cap itself uses, unhooked.
#pragma once

#include <cuda.h>

namespace runlist::cap {

#define CALLS "cap/calls.inc"
#include "driver/calls.inc"
#undef CALLS

// The stream that a call names by `stream`, where the default stream of its form may be the thread's own.
inline CUstream stream_of(CUstream stream, bool per_thread) {
    if (stream != nullptr) return stream;
    return per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

// Also where it cannot be said: a default stream while a stream that orders with it is capturing.
inline bool is_capturing(const Calls& calls, CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return calls.cuStreamIsCapturing != nullptr &&
           (calls.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

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
