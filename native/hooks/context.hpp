// Contexts: they take device memory for the driver, and what goes with them is no longer charged or measured.
#pragma once

#include "hooks/launch.hpp"
#include "hooks/managed.hpp"

namespace runlist::hooks {

// Primary contexts by ordinal, as they were last retained.
extern constinit std::atomic<CUcontext> primary_contexts[kRows][kOrdinals];

template <Id id, int row, typename Type = typename Function<id>::Type>
struct ContextDestroy;

template <Id id, int row>
struct ContextDestroy<id, row, CUresult(CUcontext)> {
    static CUresult CUDAAPI call(CUcontext context) {
        cap::destroyed(context);
        const CUresult result = call_real<id, row>(context);
        if (result == CUDA_SUCCESS && has_managed()) refund_context(context);
        return result;
    }
};

// Says that queries, and the cap if there is one, are at work in this process: a child of fork has a slot of its own.
void say_enforced();

template <Id id, int row, typename Type = typename Function<id>::Type>
struct ContextCreate;

template <Id id, int row, typename... Arguments>
struct ContextCreate<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        say_enforced();
        return Overhead<id, row>::call(arguments...);
    }
};

template <Id id, int row, typename Type = typename Function<id>::Type>
struct PrimaryRetain;

template <Id id, int row>
struct PrimaryRetain<id, row, CUresult(CUcontext*, CUdevice)> {
    static CUresult CUDAAPI call(CUcontext* context, CUdevice ordinal) {
        const CUresult result = ContextCreate<id, row>::call(context, ordinal);
        if (result == CUDA_SUCCESS && ordinal >= 0 && ordinal < kOrdinals) {
            primary_contexts[row][ordinal].store(*context, std::memory_order_relaxed);
        }
        return result;
    }
};

// A primary context ends when it is reset, or released for the last time.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct PrimaryDrop;

template <Id id, int row>
struct PrimaryDrop<id, row, CUresult(CUdevice)> {
    static CUresult CUDAAPI call(CUdevice ordinal) {
        const CUresult result = call_real<id, row>(ordinal);
        unsigned flags = 0;
        int active = 0;
        if (result == CUDA_SUCCESS) cap::released(calls_of(row), ordinal);
        if (result == CUDA_SUCCESS && has_managed() && ordinal >= 0 && ordinal < kOrdinals &&
            call_real<Id::cuDevicePrimaryCtxGetState, row>(ordinal, &flags, &active) == CUDA_SUCCESS && active == 0) {
            refund_context(primary_contexts[row][ordinal].load(std::memory_order_relaxed));
        }
        return result;
    }
};

}  // namespace runlist::hooks
