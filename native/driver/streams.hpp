// What streams are, for any part that calls libcuda itself.
#pragma once

#include <cuda.h>

namespace runlist::driver {

inline bool is_default(CUstream stream) {
    return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

// The context that a stream is of; the current one for default streams, and where that cannot be asked.
template <typename Calls>
CUcontext context_of(const Calls& calls, CUstream stream) {
    CUcontext context = nullptr;
    if (!is_default(stream) && calls.cuStreamGetCtx != nullptr &&
        calls.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS && context != nullptr) {
        return context;
    }
    return calls.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

}  // namespace runlist::driver
