// Several GPUs in one process: none of them reaches another's memory.
#include "cuda/execution/objects.hpp"

using namespace emulator;
using namespace emulator::cuda;

namespace {

CUresult check_same_gpu(CUcontext to, CUcontext from) {
    EMULATOR_ENTER();
    const Context* target = named(objects().contexts, to);
    const Context* source = named(objects().contexts, from);
    if (!target || !source) return CUDA_ERROR_INVALID_CONTEXT;
    return target->gpu == source->gpu ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    EMULATOR_ENTER();
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device) || !driver.has(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                              std::size_t bytes) {
    const CUresult result = check_same_gpu(to_context, from_context);
    return result == CUDA_SUCCESS ? cuMemcpy(to, from, bytes) : result;
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                   std::size_t bytes, CUstream stream) {
    const CUresult result = check_same_gpu(to_context, from_context);
    return result == CUDA_SUCCESS ? cuMemcpyAsync(to, from, bytes, stream) : result;
}
