// Pools: memory that comes and goes in the order of streams. The driver's lock is held.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/execution/objects.hpp"
#include "cuda/memory/heap.hpp"

namespace emulator::cuda {

struct Pool {
    // Freed, but not before what was in its stream then is done.
    struct Pending {
        std::uint64_t address;
        Point point;
    };

    Heap heap;
    std::uint64_t limit = ~0ULL;  // bytes reserved
    std::uint64_t threshold = 0;  // what it keeps at a synchronisation
    std::uint64_t reserved_high = 0;
    std::uint64_t used_high = 0;
    int reuse[3] = {1, 1, 1};  // the three attributes that say when memory may be used again
    bool is_default = false;
    bool destroyed = false;  // by the program: goes when its last allocation does
    std::vector<Pending> pending = {};
};

// The pool that a GPU's allocations come from.
Pool& default_pool(Driver& driver, std::uint32_t gpu);
// nullptr for a handle that names none, or one that the program has destroyed.
Pool* find_pool(CUmemoryPool handle);

// Memory for use in a stream; `address` is where.
CUresult allocate_from(Driver& driver, Pool& pool, Stream& stream, std::uint64_t bytes, std::uint64_t& address);
// Gives it back once the stream is past the point.
void free_in_order(Pool& pool, std::uint64_t address, Point point);
// Gives it back at once.
void free_from(Driver& driver, Pool& pool, std::uint64_t address);

}  // namespace emulator::cuda
