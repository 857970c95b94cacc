#include "cuda/memory/graph.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "cuda/execution/queue.hpp"

namespace emulator::cuda {
namespace {

struct GraphMemories {
    std::map<std::uint64_t, std::shared_ptr<GraphMemory>> all;  // by address
    std::map<std::uint32_t, std::uint64_t> used_high;           // bytes, by GPU
    std::map<std::uint32_t, std::uint64_t> reserved_high;
};

GraphMemories& memories() { return kept<GraphMemories>(); }

std::uint64_t used(std::uint32_t gpu) {
    std::uint64_t bytes = 0;
    for (const auto& [address, memory] : memories().all)
        if (memory->gpu == gpu && memory->in_use) bytes += memory->bytes;
    return bytes;
}

std::uint64_t reserved(std::uint32_t gpu) {
    std::uint64_t bytes = 0;
    for (const auto& [address, memory] : memories().all)
        if (memory->gpu == gpu) bytes += memory->memory.bytes;
    return bytes;
}

void note_high(std::uint32_t gpu) {
    memories().used_high[gpu] = std::max(memories().used_high[gpu], used(gpu));
    memories().reserved_high[gpu] = std::max(memories().reserved_high[gpu], reserved(gpu));
}

// Takes the memory away from behind the addresses, unless something uses it.
bool unback(Driver& driver, GraphMemory& memory) {
    if (memory.in_use || !is_done(driver, memory.last_use)) return false;
    if (memory.memory.bytes == 0) return true;
    unmap_memory(driver, memory.address, memory.bytes);
    driver.rm.give(std::exchange(memory.memory, {}));
    return true;
}

// Gives back the addresses that no graph names any more.
void forget(Driver& driver) {
    std::erase_if(memories().all, [&](const auto& entry) {
        if (entry.second.use_count() > 1 || !unback(driver, *entry.second)) return false;
        release_addresses(driver, entry.second->address, entry.second->bytes);
        return true;
    });
}

}  // namespace

CUresult reserve_graph_memory(Driver& driver, std::uint32_t gpu, std::uint64_t bytes,
                              std::shared_ptr<GraphMemory>& made) {
    forget(driver);
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > wire::kDeviceAddressBytes) return CUDA_ERROR_OUT_OF_MEMORY;
    bytes = whole_pages(bytes);
    const std::uint64_t address = reserve_addresses(driver, bytes);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    made = std::make_shared<GraphMemory>(address, bytes, gpu);
    memories().all.emplace(address, made);
    return CUDA_SUCCESS;
}

CUresult back_graph_memory(Driver& driver, GraphMemory& memory) {
    if (memory.memory.bytes != 0) return CUDA_SUCCESS;
    EMULATOR_TRY(take_memory(driver, memory.gpu, memory.bytes, memory.memory));
    const CUresult result = map_memory(driver, memory.address, memory.memory, memory.bytes);
    if (result != CUDA_SUCCESS) driver.rm.give(std::exchange(memory.memory, {}));
    note_high(memory.gpu);
    return result;
}

std::shared_ptr<GraphMemory> find_graph_memory(std::uint64_t address) {
    const auto found = memories().all.find(address);
    return found == memories().all.end() ? nullptr : found->second;
}

bool is_graph_memory(std::uint64_t address, std::uint64_t bytes) {
    auto it = memories().all.upper_bound(address);
    if (it == memories().all.begin()) return false;
    const GraphMemory& memory = *(--it)->second;
    const std::uint64_t offset = address - memory.address;
    return offset < memory.bytes && bytes <= memory.bytes - offset;
}

bool free_graph_memory(std::uint64_t address) {
    const std::shared_ptr<GraphMemory> memory = find_graph_memory(address);
    return memory && std::exchange(memory->in_use, false);
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device) {
    EMULATOR_ENTER();
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    forget(driver);
    for (const auto& [address, memory] : memories().all)
        if (memory->gpu == static_cast<std::uint32_t>(device)) unback(driver, *memory);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void* value) {
    EMULATOR_ENTER();
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    const auto gpu = static_cast<std::uint32_t>(device);
    note_high(gpu);
    auto& out = *static_cast<cuuint64_t*>(value);
    switch (attribute) {
        case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
            out = used(gpu);
            break;
        case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
            out = memories().used_high[gpu];
            break;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
            out = reserved(gpu);
            break;
        case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
            out = memories().reserved_high[gpu];
            break;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
