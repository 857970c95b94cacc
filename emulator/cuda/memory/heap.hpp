// Memory that allocations are cut out of. The driver's lock is held.
#pragma once

#include <cstdint>
#include <map>

#include "cuda/memory/space.hpp"
#include "shared/free_ranges.hpp"

namespace emulator::cuda {

// Blocks of a GPU that allocations are cut out of, in steps of 512 bytes.
class Heap {
  public:
    static constexpr std::uint64_t kStep = 512;  // what CUDA promises is 256; what it does is 512

    explicit Heap(std::uint32_t gpu) : gpu_(gpu) {}

    // Out of the blocks that there are; 0 when none of them has room.
    std::uint64_t cut(std::uint64_t bytes);
    // The same, with a new block if need be, of no more than `limit` bytes together.
    CUresult take(Driver& driver, std::uint64_t bytes, std::uint64_t& address, std::uint64_t limit = ~0ULL);
    void give(std::uint64_t address);
    // Gives blocks back that nothing is left of, while there is more than `keep` bytes. Returns how much went.
    std::uint64_t trim(Driver& driver, std::uint64_t keep);
    // Gives everything back.
    void clear(Driver& driver);

    std::uint32_t gpu() const { return gpu_; }
    // Bytes of the blocks, and of what has been cut out of them.
    std::uint64_t reserved() const { return reserved_; }
    std::uint64_t used() const { return used_; }
    // Of one allocation.
    std::uint64_t size_of(std::uint64_t address) const;
    // The block that an address is in.
    const Block& block_of(std::uint64_t address) const;

  private:
    struct Segment {
        Block block;
        FreeRanges free = {};
        std::map<std::uint64_t, std::uint64_t> taken = {};  // address -> bytes
    };
    using Segments = std::map<std::uint64_t, Segment>;

    Segments::const_iterator segment_of(std::uint64_t address) const;
    void drop(Driver& driver, Segments::iterator segment);

    std::uint32_t gpu_;
    Segments segments_;  // by address
    std::uint64_t reserved_ = 0;
    std::uint64_t used_ = 0;
};

}  // namespace emulator::cuda
