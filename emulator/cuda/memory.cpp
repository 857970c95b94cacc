// Device memory: allocated, freed and asked about.
#include "cuda/memory.hpp"

#include <algorithm>
#include <iterator>

#include "cuda/capture.hpp"
#include "cuda/graph_memory.hpp"
#include "cuda/memory_pool.hpp"

namespace emulator::cuda {
namespace {

constexpr std::uint64_t kLargestCut = 1 << 20;  // beyond, an allocation has pages of its own
constexpr std::size_t kPitch = 512;

CUresult memory_info(Driver& driver, std::size_t* free, std::size_t* total, std::uint32_t gpu) {
    wire::Request request{.call = wire::Call::kMemoryInfo, .gpu = gpu};
    wire::Reply reply{};
    const CUresult result = driver.connection.call(request, reply);
    *free = reply.bytes;
    *total = reply.total;
    return result;
}

}  // namespace

CUresult allocate(Driver& driver, Context& context, std::uint64_t bytes, std::uint64_t& address) {
    if (bytes <= kLargestCut) {
        if (const CUresult result = context.heap.take(driver, bytes, address); result != CUDA_SUCCESS) return result;
        driver.memory.emplace(address, Allocation{bytes, &context, Allocation::Kind::kCut});
        return CUDA_SUCCESS;
    }
    Block block;
    const CUresult result = make_block(driver, static_cast<std::uint32_t>(context.gpu), bytes, block);
    if (result != CUDA_SUCCESS) return result;
    address = block.address;
    driver.memory.emplace(address, Allocation{bytes, &context, Allocation::Kind::kOwn, block});
    return CUDA_SUCCESS;
}

void free_allocation(Driver& driver, std::uint64_t address) {
    const auto it = driver.memory.find(address);
    if (it == driver.memory.end()) return;
    const Allocation allocation = it->second;
    driver.memory.erase(it);
    switch (allocation.kind) {
        case Allocation::Kind::kCut:
            allocation.context->heap.give(address);
            allocation.context->heap.trim(driver, 0);
            break;
        case Allocation::Kind::kPool:
            free_from(driver, *allocation.pool, address);
            break;
        case Allocation::Kind::kOwn:
        case Allocation::Kind::kImported:
            drop_block(driver, allocation.block);
    }
}

const Allocation* find_allocation(const Driver& driver, std::uint64_t address, std::uint64_t& start) {
    return find_part(driver.memory, address, start);
}

bool is_usable(const Driver& driver, std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t start = 0;
    const Allocation* allocation = find_allocation(driver, address, start);
    if (allocation) return bytes <= allocation->bytes - (address - start);
    return is_mapped(driver, address, bytes) || is_graph_memory(address, bytes);
}

void free_all_memory(Driver& driver, Context& context) {
    std::vector<std::uint64_t> gone;
    for (const auto& [address, allocation] : driver.memory)
        if (allocation.context == &context) gone.push_back(address);
    for (const std::uint64_t address : gone) free_allocation(driver, address);
    context.code.clear(driver);
    trim_pools(driver);
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuMemGetInfo(std::size_t* free, std::size_t* total) {
    EMULATOR_ENTER_CONTEXT();
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    return memory_info(driver, free, total, static_cast<std::uint32_t>(context.gpu));
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
    EMULATOR_ENTER_CONTEXT();
    if (!address || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = allow_unsafe_call(driver); result != CUDA_SUCCESS) return result;
    std::uint64_t made = 0;
    const CUresult result = allocate(driver, context, bytes, made);
    if (result == CUDA_SUCCESS) *address = made;
    return result;
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height,
                                 unsigned element_bytes) {
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
    if (const CUresult result = allow_unsafe_call(driver); result != CUDA_SUCCESS) return result;
    const auto found = driver.memory.find(address);
    if (found == driver.memory.end() && find_graph_memory(address)) {
        guard.unlock();
        synchronize(driver, context);
        guard.lock();
        return free_graph_memory(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    const auto managed = driver.host_memory.find(address);
    const bool device = found != driver.memory.end() && found->second.kind != Allocation::Kind::kImported;
    if (!device && (managed == driver.host_memory.end() || !managed->second.managed)) return CUDA_ERROR_INVALID_VALUE;
    Context& owner = device ? *found->second.context : context;
    guard.unlock();
    synchronize(driver, owner);  // work that uses it may be queued
    guard.lock();
    if (!device) return free_host(driver, address);
    free_allocation(driver, address);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    std::uint64_t start = 0;
    const Allocation* device = find_allocation(driver, address, start);
    const HostAllocation* host = device ? nullptr : find_host(driver, address, start);
    if (!device && !host) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = start;
    if (bytes) *bytes = device ? device->bytes : host->bytes;
    return CUDA_SUCCESS;
}
