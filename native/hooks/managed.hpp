// Managed memory: its pages come by faults, not through the driver's door, so it is charged here, whole, to the GPU
// that is current when it is made.
#pragma once

#include "hooks/memory.hpp"
#include "hooks/outermost.hpp"

namespace runlist::hooks {

struct Managed {
    CUdeviceptr pointer;
    std::uint64_t bytes;
    CUcontext context;
    int device;  // index in the region
};

// What is charged. O(1) each, but for forgetting a context's. While nothing is charged, has_managed is one load.
extern constinit std::atomic<std::uint64_t> managed_count;
inline bool has_managed() { return managed_count.load(std::memory_order_relaxed) != 0; }
void remember(const Managed& managed);
bool take(CUdeviceptr pointer, Managed& managed);  // and forgets it; false if it is not managed
void refund_context(CUcontext context);            // all that went with it

template <Id id, int row, typename Type = typename Function<id>::Type>
struct ManagedAlloc;

template <Id id, int row, typename... Rest>
struct ManagedAlloc<id, row, CUresult(CUdeviceptr*, size_t, Rest...)> {
    static CUresult CUDAAPI call(CUdeviceptr* pointer, size_t bytes, Rest... rest) {
        Managed made{.pointer = 0, .bytes = bytes, .context = nullptr, .device = -1};
        const Outermost outermost;
        if (outermost && region::quota.on()) made.device = current_device<row>();
        if (made.device < 0) return call_real<id, row>(pointer, bytes, rest...);
        if (!region::quota.charge(made.device, bytes)) {
            region::quota.count_refusal(made.device);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        const CUresult result = call_real<id, row>(pointer, bytes, rest...);
        region::quota.settle(made.device, bytes, result == CUDA_SUCCESS ? bytes : 0, false);
        if (result == CUDA_SUCCESS) {
            made.pointer = *pointer;
            call_real<Id::cuCtxGetCurrent, row>(&made.context);
            remember(made);
        }
        return result;
    }
};

// Frees of all memory come here; the record goes first, because the address may be given to another thread at once.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct ManagedFree;

template <Id id, int row, typename... Rest>
struct ManagedFree<id, row, CUresult(CUdeviceptr, Rest...)> {
    static CUresult CUDAAPI call(CUdeviceptr pointer, Rest... rest) {
        Managed freed;
        if (!has_managed() || !take(pointer, freed)) [[likely]]
            return call_real<id, row>(pointer, rest...);
        const CUresult result = call_real<id, row>(pointer, rest...);
        if (result == CUDA_SUCCESS) {
            region::quota.refund(freed.device, freed.bytes, false);
        } else {
            remember(freed);
        }
        return result;
    }
};

}  // namespace runlist::hooks
