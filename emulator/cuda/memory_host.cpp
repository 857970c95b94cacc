// Host memory that the device reaches: pinned, and managed.
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>

#include "cuda/capture.hpp"
#include "cuda/memory.hpp"

namespace emulator::cuda {

CUresult allocate_host(Driver& driver, Context& context, std::size_t bytes, void*& made) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t rounded = (bytes + page - 1) / page * page;
    // The address is reserved first: the device knows the memory by it.
    void* address = ::mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::Request request{.call = wire::Call::kAllocateHost, .address = address_of(address), .bytes = rounded};
    wire::Reply reply{};
    UniqueFd fd;
    CUresult result = driver.connection.call(request, reply, &fd);
    if (result == CUDA_SUCCESS &&
        ::mmap(address, rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0) == MAP_FAILED)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        ::munmap(address, rounded);
        return result;
    }
    driver.host_memory[address_of(address)] = {rounded, &context};
    made = address;
    return CUDA_SUCCESS;
}

const HostAllocation* find_host(const Driver& driver, std::uint64_t address, std::uint64_t& start) {
    return find_part(driver.host_memory, address, start);
}

bool is_pinned(const Driver& driver, std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t start = 0;
    const HostAllocation* found = find_host(driver, address, start);
    return found && bytes <= found->bytes - (address - start);
}

CUresult free_host(Driver& driver, std::uint64_t address) {
    const auto found = driver.host_memory.find(address);
    if (found == driver.host_memory.end()) return CUDA_ERROR_INVALID_VALUE;
    wire::Request request{.call = wire::Call::kFreeHost, .address = address};
    wire::Reply reply{};
    const CUresult result = driver.connection.call(request, reply);
    ::munmap(reinterpret_cast<void*>(address), found->second.bytes);
    driver.host_memory.erase(found);
    return result;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
    EMULATOR_ENTER_CONTEXT();
    if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = allow_unsafe_call(driver); result != CUDA_SUCCESS) return result;
    // All of it can be reached by the device: addresses are unified.
    return allocate_host(driver, context, bytes, *pointer);
}

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
    EMULATOR_ENTER_CONTEXT();
    const auto found = driver.host_memory.find(address_of(pointer));
    if (found == driver.host_memory.end() || found->second.managed) return CUDA_ERROR_INVALID_VALUE;
    guard.unlock();
    synchronize(driver, context);
    guard.lock();
    return free_host(driver, address_of(pointer));
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* address, void* pointer, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    if (!address || flags != 0 || !is_pinned(driver, address_of(pointer), 1)) return CUDA_ERROR_INVALID_VALUE;
    *address = address_of(pointer);
    return CUDA_SUCCESS;
}

// Managed memory stays in host memory, where both reach it: it takes none of the GPU's.
CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    if (!address || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = allow_unsafe_call(driver); result != CUDA_SUCCESS) return result;
    void* made = nullptr;
    const CUresult result = allocate_host(driver, context, bytes, made);
    if (result != CUDA_SUCCESS) return result;
    driver.host_memory.at(address_of(made)).managed = true;
    *address = address_of(made);
    return CUDA_SUCCESS;
}

namespace {

CUresult check_managed(CUdeviceptr address, std::size_t bytes) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    std::uint64_t start = 0;
    const HostAllocation* found = find_host(driver, address, start);
    const bool whole = found && found->managed && bytes != 0 && bytes <= found->bytes - (address - start);
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_place(CUmemLocation place) {
    EMULATOR_ENTER();
    switch (place.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE:
            return place.id >= 0 && static_cast<std::size_t>(place.id) < driver.primaries.size()
                       ? CUDA_SUCCESS
                       : CUDA_ERROR_INVALID_DEVICE;
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUmemLocation place_of(CUdevice device) {
    CUmemLocation place{};
    place.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    place.id = device == CU_DEVICE_CPU ? 0 : device;
    return place;
}

}  // namespace

// Hints where managed memory should be: it stays where it is.
CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr address, std::size_t bytes, CUmemLocation place, unsigned flags,
                                       CUstream stream) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_managed(address, bytes); result != CUDA_SUCCESS) return result;
    if (const CUresult result = check_place(place); result != CUDA_SUCCESS) return result;
    EMULATOR_ENTER();
    return find_stream(driver, stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr address, std::size_t bytes, CUdevice device, CUstream stream) {
    return cuMemPrefetchAsync_v2(address, bytes, place_of(device), 0, stream);
}
