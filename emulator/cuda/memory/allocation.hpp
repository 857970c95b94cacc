// The device memory that a program has asked for, by address. The driver's lock is held.
#pragma once

#include <cstdint>
#include <map>

#include "cuda/execution/objects.hpp"
#include "cuda/memory/pool.hpp"
#include "cuda/memory/space.hpp"

namespace emulator::cuda {

// Addresses that a program maps by itself are kept elsewhere.
struct Allocation {
    enum class Kind { kOwn, kCut, kPool, kImported };

    std::uint64_t bytes;
    Context* context;
    Kind kind;
    Block block = {};      // all but kCut, which is out of the context's heap, and kPool
    Pool* pool = nullptr;  // kPool
    std::uint64_t id = new_id();
};

using Allocations = std::map<std::uint64_t, Allocation>;
inline Allocations& allocations() { return kept<Allocations>(); }

inline const Allocation* find_allocation(std::uint64_t address, std::uint64_t& start) {
    return find_part(allocations(), address, start);
}

// As cuMemAlloc: out of a page with others when it is small, and of its own otherwise.
CUresult allocate(Driver& driver, Context& context, std::uint64_t bytes, std::uint64_t& address);
// What an allocation of kind kOwn or kCut lies in.
const Block& block_of(const Allocation& allocation, std::uint64_t start);
// Frees an allocation of any kind, without waiting for its use.
void free_allocation(Driver& driver, std::uint64_t address);
// Frees all that was allocated in a context.
void free_all_memory(Driver& driver, const Context& context);

}  // namespace emulator::cuda
