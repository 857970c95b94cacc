// cuGetProcAddress: whatever version and flags lead to a function, it is known by its address.
#pragma once

#include "hooks/functions.hpp"
#include "resolve/copies.hpp"

namespace runlist::hooks {

template <Id id, int row, typename Type = typename Function<id>::Type>
struct ProcAddress;

template <Id id, int row, typename... Rest>
struct ProcAddress<id, row, CUresult(const char*, void**, Rest...)> {
    static CUresult CUDAAPI call(const char* symbol, void** function, Rest... rest) {
        const CUresult result = call_real<id, row>(symbol, function, rest...);
        if (result == CUDA_SUCCESS && function != nullptr && resolve::substitutes.wanted()) {
            if (void* ours = hook_of(*function)) *function = ours;
        }
        return result;
    }
};

}  // namespace runlist::hooks
