#include "cuda/memory/space.hpp"

#include <algorithm>

#include "shared/free_ranges.hpp"

namespace emulator::cuda {
namespace {

struct Addresses : FreeRanges {
    Addresses() { add(wire::kDeviceAddressBase, wire::kDeviceAddressBytes); }
};

}  // namespace

CUresult take_memory(Driver& driver, std::uint32_t gpu, std::uint64_t bytes, DeviceMemory& memory) {
    const CUresult result = driver.rm.take(gpu, bytes, memory);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !driver.on_full(gpu)) return result;
    return driver.rm.take(gpu, bytes, memory);
}

std::uint64_t reserve_addresses(Driver& driver, std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted) {
    if (bytes > wire::kDeviceAddressBytes || alignment > wire::kDeviceAddressBytes) return 0;
    FreeRanges& free = kept<Addresses>();
    std::uint64_t address = wanted;
    if (wanted == 0 || !free.take_at(wanted, bytes))
        address = free.take(bytes, std::max(alignment, wire::kPageBytes)).value_or(0);
    if (address == 0 ||
        driver.connection.call({.call = wire::Call::kReserve, .address = address, .bytes = bytes}) == CUDA_SUCCESS)
        return address;
    free.add(address, bytes);
    return 0;
}

void release_addresses(Driver& driver, std::uint64_t address, std::uint64_t bytes) {
    if (driver.connection.call({.call = wire::Call::kRelease, .address = address}) == CUDA_SUCCESS)
        kept<Addresses>().add(address, bytes);
}

CUresult map_memory(Driver& driver, std::uint64_t address, const DeviceMemory& memory, std::uint64_t bytes) {
    wire::Request request{.call = wire::Call::kMap, .address = address, .bytes = bytes};
    request.memory = {.offset = 0, .handle = memory.handle};
    return driver.connection.call(request);
}

CUresult unmap_memory(Driver& driver, std::uint64_t address, std::uint64_t bytes) {
    return driver.connection.call({.call = wire::Call::kUnmap, .address = address, .bytes = bytes});
}

CUresult map_block(Driver& driver, Block& block) {
    block.address = reserve_addresses(driver, block.memory.bytes);
    if (!block.address) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = map_memory(driver, block.address, block.memory, block.memory.bytes);
    if (result != CUDA_SUCCESS) release_addresses(driver, block.address, block.memory.bytes);
    return result;
}

CUresult make_block(Driver& driver, std::uint32_t gpu, std::uint64_t bytes, Block& block) {
    EMULATOR_TRY(take_memory(driver, gpu, bytes, block.memory));
    const CUresult result = map_block(driver, block);
    if (result != CUDA_SUCCESS) driver.rm.give(block.memory);
    return result;
}

void drop_block(Driver& driver, const Block& block) {
    release_addresses(driver, block.address, block.memory.bytes);
    driver.rm.give(block.memory);
}

}  // namespace emulator::cuda
