// Several GPUs in one process: none of them reaches another's memory.
#include "driver.hpp"

using namespace emulator;
using namespace emulator::cuda;

namespace {

// Do the two devices exist?
CUresult check_pair(const Driver& driver, CUdevice one, CUdevice other) {
    const auto valid = [&](CUdevice device) {
        return device >= 0 && static_cast<std::size_t>(device) < driver.primaries.size();
    };
    return valid(one) && valid(other) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult check_same_gpu(CUcontext to, CUcontext from) {
    EMULATOR_ENTER();
    const auto* target = reinterpret_cast<Context*>(to);
    const auto* source = reinterpret_cast<Context*>(from);
    const auto known = [&](const Context* context) { return driver.contexts.contains(const_cast<Context*>(context)); };
    if (!known(target) || !known(source)) return CUDA_ERROR_INVALID_CONTEXT;
    return target->gpu == source->gpu ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    EMULATOR_ENTER();
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_pair(driver, device, peer); result != CUDA_SUCCESS) return result;
    *can = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute, CUdevice from, CUdevice to) {
    EMULATOR_ENTER();
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_pair(driver, from, to); result != CUDA_SUCCESS || from == to)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = 0;
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
