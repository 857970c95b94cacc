#include "cuda/memory/heap.hpp"

#include <iterator>

namespace emulator::cuda {

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
    const std::uint64_t more = whole_pages(bytes);
    if (more < bytes || more > limit || reserved_ > limit - more) return CUDA_ERROR_OUT_OF_MEMORY;
    Segment segment;
    EMULATOR_TRY(make_block(driver, gpu_, more, segment.block));
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
