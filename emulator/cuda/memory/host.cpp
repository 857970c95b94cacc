#include "cuda/memory/host.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/execution/stream.hpp"
#include "cuda/memory/space.hpp"

namespace emulator::cuda {
namespace {

using HostAllocations = std::map<std::uint64_t, HostAllocation>;
HostAllocations& known() { return kept<HostAllocations>(); }

}  // namespace

CUresult allocate_host(Driver& driver, Context& context, std::size_t bytes, void*& made) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t rounded = (bytes + page - 1) / page * page;
    // The address is reserved first: the device knows the memory by it.
    void* address = ::mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::Reply reply{};
    UniqueFd fd;
    CUresult result = driver.connection.call(
        {.call = wire::Call::kAllocateHost, .address = address_of(address), .bytes = rounded}, reply, &fd);
    if (result == CUDA_SUCCESS &&
        ::mmap(address, rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0) == MAP_FAILED)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        ::munmap(address, rounded);
        return result;
    }
    known()[address_of(address)] = {rounded, &context};
    made = address;
    return CUDA_SUCCESS;
}

const HostAllocation* find_host(std::uint64_t address, std::uint64_t& start) {
    return find_part(known(), address, start);
}

bool is_pinned(std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t start = 0;
    const HostAllocation* found = find_host(address, start);
    return found && bytes <= found->bytes - (address - start);
}

bool is_managed(std::uint64_t address) {
    const auto found = known().find(address);
    return found != known().end() && found->second.managed;
}

CUresult free_host(Driver& driver, std::uint64_t address) {
    const auto found = known().find(address);
    if (found == known().end()) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = driver.connection.call({.call = wire::Call::kFreeHost, .address = address});
    ::munmap(reinterpret_cast<void*>(address), found->second.bytes);
    known().erase(found);
    return result;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
    EMULATOR_ENTER_CONTEXT();
    if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    EMULATOR_TRY(allow_unsafe_call());
    // All of it can be reached by the device: addresses are unified.
    return allocate_host(driver, context, bytes, *pointer);
}

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
    EMULATOR_ENTER_CONTEXT();
    const std::uint64_t address = address_of(pointer);
    if (!known().contains(address) || is_managed(address)) return CUDA_ERROR_INVALID_VALUE;
    wait_for_all(driver, context, guard);
    return free_host(driver, address);
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* address, void* pointer, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    if (!address || flags != 0 || !is_pinned(address_of(pointer), 1)) return CUDA_ERROR_INVALID_VALUE;
    *address = address_of(pointer);
    return CUDA_SUCCESS;
}

// Managed memory stays in host memory, where both reach it: it takes none of the GPU's.
CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    if (!address || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    EMULATOR_TRY(allow_unsafe_call());
    void* made = nullptr;
    EMULATOR_TRY(allocate_host(driver, context, bytes, made));
    *address = address_of(made);
    known().at(*address).managed = true;
    return CUDA_SUCCESS;
}

// Says where managed memory should be: it stays where it is.
CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr address, std::size_t bytes, CUmemLocation place, unsigned flags,
                                       CUstream stream) {
    EMULATOR_ENTER_CONTEXT();
    std::uint64_t start = 0;
    const HostAllocation* found = find_host(address, start);
    if (flags != 0 || bytes == 0 || !found || !found->managed || bytes > found->bytes - (address - start))
        return CUDA_ERROR_INVALID_VALUE;
    switch (place.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE:
            if (!driver.has(place.id)) return CUDA_ERROR_INVALID_DEVICE;
            break;
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
            break;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
    return find_stream(driver, stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr address, std::size_t bytes, CUdevice device, CUstream stream) {
    const bool host = device == CU_DEVICE_CPU;
    CUmemLocation place{};
    place.type = host ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    place.id = host ? 0 : device;
    return cuMemPrefetchAsync_v2(address, bytes, place, 0, stream);
}
