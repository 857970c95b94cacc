// Pools: memory that comes and goes in the order of streams. The driver's lock is held.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/driver.hpp"

namespace emulator::cuda {

struct Pool {
    // Freed, but not before what was in its stream then is done.
    struct Pending {
        std::uint64_t address;
        std::uint32_t stream;  // slot
        std::uint64_t sequence;
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
Pool& default_pool(const Driver& driver, std::uint32_t gpu);

// Memory for use in a stream; `address` is where.
CUresult allocate_from(Driver& driver, Pool& pool, Context& context, Stream& stream, std::uint64_t bytes,
                       std::uint64_t& address);
// Gives it back once what is in the stream now is done.
void free_in_order(Driver& driver, std::uint64_t address, const Stream& stream);
// Gives back at once what an allocation was.
void free_from(Driver& driver, Pool& pool, std::uint64_t address);

// Gives unused memory of all pools of a GPU back, whatever they are to keep. False when there was none.
bool give_unused_memory(Driver& driver, std::uint32_t gpu);
// The same at a synchronisation, for all GPUs: they keep what they are to keep.
void trim_pools(Driver& driver);

}  // namespace emulator::cuda
