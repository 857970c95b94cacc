// The forms of entry points for programs whose default stream is the thread's own (the _ptsz and _ptds of cuda.h).
#pragma once

#include "cuda/driver/exports.hpp"

namespace emulator::cuda::per_thread {

// In force while one of the functions here is on the calling thread's stack: stream 0 is CU_STREAM_PER_THREAD.
class Scope {
  public:
    Scope() : before_(active_) { active_ = true; }
    ~Scope() { active_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    static bool active() { return active_; }

  private:
    static inline thread_local bool active_ = false;
    bool before_;
};

// `Of<&f>::call` is f with that meaning of stream 0, whatever f's parameters are.
template <auto function>
struct Of;

template <typename... Arguments, CUresult(CUDAAPI* function)(Arguments...)>
struct Of<function> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        const Scope scope;
        return function(arguments...);
    }
};

}  // namespace emulator::cuda::per_thread
