#include "cuda/heap.hpp"

#include <algorithm>
#include <iterator>

#include "cuda/driver.hpp"
#include "cuda/memory_pool.hpp"

namespace emulator::cuda {

CUresult take_memory(Driver& driver, std::uint32_t gpu, std::uint64_t bytes, DeviceMemory& memory) {
    const CUresult result = driver.rm.take(gpu, bytes, memory);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !give_unused_memory(driver, gpu)) return result;
    return driver.rm.take(gpu, bytes, memory);
}

std::uint64_t reserve_addresses(Driver& driver, std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted) {
    if (bytes > wire::kDeviceAddressBytes || alignment > wire::kDeviceAddressBytes) return 0;
    std::uint64_t address = 0;
    if (wanted != 0 && driver.addresses.take_at(wanted, bytes)) {
        address = wanted;
    } else {
        const auto found = driver.addresses.take(bytes, std::max(alignment, wire::kPageBytes));
        if (!found) return 0;
        address = *found;
    }
    wire::Request request{.call = wire::Call::kReserve, .address = address, .bytes = bytes};
    wire::Reply reply{};
    if (driver.connection.call(request, reply) == CUDA_SUCCESS) return address;
    driver.addresses.add(address, bytes);
    return 0;
}

void release_addresses(Driver& driver, std::uint64_t address, std::uint64_t bytes) {
    wire::Request request{.call = wire::Call::kRelease, .address = address};
    wire::Reply reply{};
    if (driver.connection.call(request, reply) == CUDA_SUCCESS) driver.addresses.add(address, bytes);
}

CUresult map_memory(Driver& driver, std::uint64_t address, const DeviceMemory& memory, std::uint64_t bytes) {
    wire::Request request{.call = wire::Call::kMap, .address = address, .bytes = bytes};
    request.memory = {.offset = 0, .handle = memory.handle};
    wire::Reply reply{};
    return driver.connection.call(request, reply);
}

CUresult unmap_memory(Driver& driver, std::uint64_t address, std::uint64_t bytes) {
    wire::Request request{.call = wire::Call::kUnmap, .address = address, .bytes = bytes};
    wire::Reply reply{};
    return driver.connection.call(request, reply);
}

CUresult map_block(Driver& driver, Block& block) {
    block.address = reserve_addresses(driver, block.memory.bytes);
    if (!block.address) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = map_memory(driver, block.address, block.memory, block.memory.bytes);
    if (result != CUDA_SUCCESS) release_addresses(driver, block.address, block.memory.bytes);
    return result;
}

CUresult make_block(Driver& driver, std::uint32_t gpu, std::uint64_t bytes, Block& block) {
    if (const CUresult result = take_memory(driver, gpu, bytes, block.memory); result != CUDA_SUCCESS) return result;
    const CUresult result = map_block(driver, block);
    if (result != CUDA_SUCCESS) driver.rm.give(block.memory);
    return result;
}

void drop_block(Driver& driver, const Block& block) {
    release_addresses(driver, block.address, block.memory.bytes);
    driver.rm.give(block.memory);
}

std::uint64_t Heap::cut(std::uint64_t bytes) {
    bytes = (bytes + kStep - 1) / kStep * kStep;
    for (auto& [start, segment] : segments_) {
        const auto address = segment.free.take(bytes);
        if (!address) continue;
        segment.taken.emplace(*address, bytes);
        used_ += bytes;
        return *address;
    }
    return 0;
}

CUresult Heap::take(Driver& driver, std::uint64_t bytes, std::uint64_t& address, std::uint64_t limit) {
    address = cut(bytes);
    if (address) return CUDA_SUCCESS;
    const std::uint64_t more = (bytes + wire::kPageBytes - 1) / wire::kPageBytes * wire::kPageBytes;
    if (more < bytes || more > limit || reserved_ > limit - more) return CUDA_ERROR_OUT_OF_MEMORY;
    Segment segment;
    if (const CUresult result = make_block(driver, gpu_, more, segment.block); result != CUDA_SUCCESS) return result;
    segment.free.add(segment.block.address, segment.block.memory.bytes);
    reserved_ += segment.block.memory.bytes;
    segments_.emplace(segment.block.address, std::move(segment));
    address = cut(bytes);
    return CUDA_SUCCESS;
}

Heap::Segments::const_iterator Heap::segment_of(std::uint64_t address) const {
    return std::prev(segments_.upper_bound(address));
}

void Heap::give(std::uint64_t address) {
    Segment& segment = segments_.at(segment_of(address)->first);
    const auto taken = segment.taken.find(address);
    segment.free.add(address, taken->second);
    used_ -= taken->second;
    segment.taken.erase(taken);
}

void Heap::drop(Driver& driver, Segments::iterator segment) {
    drop_block(driver, segment->second.block);
    reserved_ -= segment->second.block.memory.bytes;
    segments_.erase(segment);
}

std::uint64_t Heap::trim(Driver& driver, std::uint64_t keep) {
    const std::uint64_t before = reserved_;
    for (auto it = segments_.begin(); it != segments_.end() && reserved_ > keep;) {
        const auto segment = it++;
        if (segment->second.taken.empty() && reserved_ - segment->second.block.memory.bytes >= keep)
            drop(driver, segment);
    }
    return before - reserved_;
}

void Heap::clear(Driver& driver) {
    while (!segments_.empty()) drop(driver, segments_.begin());
    used_ = 0;
}

std::uint64_t Heap::size_of(std::uint64_t address) const { return segment_of(address)->second.taken.at(address); }

const Block& Heap::block_of(std::uint64_t address) const { return segment_of(address)->second.block; }

}  // namespace emulator::cuda
