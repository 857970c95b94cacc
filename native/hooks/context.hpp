// The end of contexts: what goes with them is no longer charged or measured.
#pragma once

#include "cap/context.hpp"
#include "hooks/launch.hpp"
#include "hooks/managed.hpp"
#include "hooks/touch.hpp"

namespace runlist::hooks {

template <Id id, int row, typename Type = typename Function<id>::Type>
struct ContextDestroy;

template <Id id, int row>
struct ContextDestroy<id, row, CUresult(CUcontext)> {
    static CUresult CUDAAPI call(CUcontext context) {
        cap::destroyed(context);
        forget_touch(context);
        const CUresult result = call_real<id, row>(context);
        if (result == CUDA_SUCCESS) {
            activity::forget_all_of(context);
        } else {
            activity::forget_all();  // that may be the error of work that failed before
        }
        if (result == CUDA_SUCCESS && has_managed()) refund_context(context);
        return result;
    }
};

inline bool has_primary(int row, CUdevice ordinal) {
    unsigned flags = 0;
    int active = 0;
    return call_real<Id::cuDevicePrimaryCtxGetState>(row, ordinal, &flags, &active) == CUDA_SUCCESS && active != 0;
}

// The primary context of a GPU, nullptr while there is none. It may have been retained in ways that we do not see, as
// the CUDA runtime does, but whoever retains it is told which one it is.
inline CUcontext primary_of(int row, CUdevice ordinal) {
    CUcontext primary = nullptr;
    if (!has_primary(row, ordinal)) return nullptr;
    if (call_real<Id::cuDevicePrimaryCtxRetain>(row, &primary, ordinal) != CUDA_SUCCESS) return nullptr;
    if (call_real<Id::cuDevicePrimaryCtxRelease_v2>(row, ordinal) == CUDA_ERROR_NOT_FOUND) {
        call_real<Id::cuDevicePrimaryCtxRelease>(row, ordinal);
    }
    return primary;
}

// A primary context ends when it is reset, or released for the last time.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct PrimaryDrop;

template <Id id, int row>
struct PrimaryDrop<id, row, CUresult(CUdevice)> {
    static CUresult CUDAAPI call(CUdevice ordinal) {
        const CUcontext primary = primary_of(row, ordinal);
        const NoTouch none;
        const CUresult result = call_real<id, row>(ordinal);
        if (!has_primary(row, ordinal)) activity::forget_all_of(primary);
        if (result != CUDA_SUCCESS) return result;
        none.forget(calls_in(row), ordinal);
        cap::released(calls_of(row), ordinal);
        if (has_managed() && primary != nullptr && primary_of(row, ordinal) != primary) refund_context(primary);
        return result;
    }
};

}  // namespace runlist::hooks
