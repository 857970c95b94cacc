// Device memory as programs ask for it and about it.
#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/memory/allocation.hpp"
#include "cuda/memory/graph.hpp"
#include "cuda/memory/host.hpp"

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuMemGetInfo(std::size_t* free, std::size_t* total) {
    EMULATOR_ENTER_CONTEXT();
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    wire::Reply reply{};
    const CUresult result = driver.connection.describe(context.gpu, reply);
    *free = reply.bytes;
    *total = reply.total;
    return result;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
    EMULATOR_ENTER_CONTEXT();
    if (!address || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    EMULATOR_TRY(allow_unsafe_call());
    std::uint64_t made = 0;
    const CUresult result = allocate(driver, context, bytes, made);
    if (result == CUDA_SUCCESS) *address = made;
    return result;
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height,
                                 unsigned element_bytes) {
    constexpr std::size_t kPitch = 512;
    if (!address || !pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
    if (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) return CUDA_ERROR_INVALID_VALUE;
    if (width > ~std::size_t{0} - kPitch) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t row = (width + kPitch - 1) / kPitch * kPitch;
    if (height > ~std::size_t{0} / row) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = cuMemAlloc(address, row * height);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
    EMULATOR_ENTER_CONTEXT();
    if (address == 0) return CUDA_SUCCESS;
    EMULATOR_TRY(allow_unsafe_call());
    const auto found = allocations().find(address);
    if (found == allocations().end() && find_graph_memory(address)) {
        wait_for_all(driver, context, guard);
        return free_graph_memory(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    const bool device = found != allocations().end() && found->second.kind != Allocation::Kind::kImported;
    if (!device && !is_managed(address)) return CUDA_ERROR_INVALID_VALUE;
    wait_for_all(driver, device ? *found->second.context : context, guard);  // work that uses it may be queued
    if (!device) return free_host(driver, address);
    free_allocation(driver, address);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
    EMULATOR_ENTER_CONTEXT();
    std::uint64_t start = 0;
    const Allocation* device = find_allocation(address, start);
    const HostAllocation* host = device ? nullptr : find_host(address, start);
    if (!device && !host) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = start;
    if (bytes) *bytes = device ? device->bytes : host->bytes;
    return CUDA_SUCCESS;
}
