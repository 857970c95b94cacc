// The memory of one GPU, in pages of 2 MiB: which of them are taken, and a sparse file that holds their contents.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/memory/shared.hpp"
#include "shared/free_ranges.hpp"

namespace emulator {

class PhysicalMemory;

// Pages that belong to whoever holds this; they are free again, and read as zero, when the last holder lets go.
class MemoryBlock {
  public:
    MemoryBlock(PhysicalMemory& memory, std::vector<FreeRanges::Range> extents, std::uint64_t bytes)
        : memory_(memory), extents_(std::move(extents)), bytes_(bytes) {}
    MemoryBlock(const MemoryBlock&) = delete;
    MemoryBlock& operator=(const MemoryBlock&) = delete;
    ~MemoryBlock();

    std::uint64_t bytes() const { return bytes_; }
    // Where it begins in the GPU's memory.
    std::uint64_t offset() const { return extents_.front().start; }
    // The first `bytes` bytes from `from` on, where they lie in one piece; nullptr where they do not.
    std::byte* contiguous(std::uint64_t from, std::uint64_t bytes) const;
    // Maps them at `where`, which is this process's own. False when the system refuses.
    bool map_at(std::byte* where, std::uint64_t from, std::uint64_t bytes) const;

  private:
    PhysicalMemory& memory_;
    std::vector<FreeRanges::Range> extents_;  // never empty
    std::uint64_t bytes_;
};

class PhysicalMemory {
  public:
    static constexpr std::uint64_t kPage = 2 << 20;

    // Throws std::runtime_error when the system has no address space for it.
    explicit PhysicalMemory(std::uint64_t bytes);
    PhysicalMemory(PhysicalMemory&&) = default;

    std::uint64_t total() const { return total_; }
    std::uint64_t used() const { return used_; }
    // `bytes` rounded up to pages; nullptr when there are not so many free. In one piece if there is one that long.
    std::shared_ptr<MemoryBlock> take(std::uint64_t bytes);

  private:
    friend class MemoryBlock;
    void give_back(const std::vector<FreeRanges::Range>& extents);

    std::uint64_t total_;
    std::uint64_t used_ = 0;
    SharedMemory contents_;
    FreeRanges free_;
};

}  // namespace emulator
