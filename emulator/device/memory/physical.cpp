#include "device/memory/physical.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace emulator {

MemoryBlock::~MemoryBlock() { memory_.give_back(extents_); }

std::byte* MemoryBlock::contiguous(std::uint64_t from, std::uint64_t bytes) const {
    for (const FreeRanges::Range& extent : extents_) {
        if (from < extent.bytes)
            return bytes <= extent.bytes - from ? memory_.contents_.data() + extent.start + from : nullptr;
        from -= extent.bytes;
    }
    return nullptr;
}

bool MemoryBlock::map_at(std::byte* where, std::uint64_t from, std::uint64_t bytes) const {
    for (const FreeRanges::Range& extent : extents_) {
        if (bytes == 0) break;
        if (from >= extent.bytes) {
            from -= extent.bytes;
            continue;
        }
        const std::uint64_t part = std::min(bytes, extent.bytes - from);
        if (::mmap(where, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, memory_.contents_.fd(),
                   static_cast<off_t>(extent.start + from)) == MAP_FAILED)
            return false;
        where += part;
        bytes -= part;
        from = 0;
    }
    return bytes == 0;
}

PhysicalMemory::PhysicalMemory(std::uint64_t bytes)
    : total_(bytes), contents_("emulated-gpu-memory", std::max(bytes / kPage, std::uint64_t{1}) * kPage) {
    if (!contents_.valid())
        throw std::runtime_error("cannot reserve " + std::to_string(bytes) +
                                 " bytes of address space: choose a smaller --memory");
    free_.add(0, bytes / kPage * kPage);
}

std::shared_ptr<MemoryBlock> PhysicalMemory::take(std::uint64_t bytes) {
    if (bytes == 0 || bytes > total_) return nullptr;
    bytes = (bytes + kPage - 1) / kPage * kPage;
    if (bytes > total_ / kPage * kPage - used_) return nullptr;
    std::vector<FreeRanges::Range> extents;
    if (const auto whole = free_.take(bytes))
        extents.push_back({*whole, bytes});
    else
        for (std::uint64_t left = bytes; left > 0; left -= extents.back().bytes)
            extents.push_back(free_.take_some(left));
    used_ += bytes;
    return std::make_shared<MemoryBlock>(*this, std::move(extents), bytes);
}

void PhysicalMemory::give_back(const std::vector<FreeRanges::Range>& extents) {
    for (const auto& [start, bytes] : extents) {
        contents_.discard(start, bytes);
        free_.add(start, bytes);
        used_ -= bytes;
    }
}

}  // namespace emulator
