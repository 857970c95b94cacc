// Host memory that the device reaches: pinned, and managed. The driver's lock is held.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/execution/objects.hpp"

namespace emulator::cuda {

struct HostAllocation {
    std::size_t bytes;
    Context* context;
    bool managed = false;
    std::uint64_t id = new_id();
};

CUresult allocate_host(Driver& driver, Context& context, std::size_t bytes, void*& made);
// The host memory that an address is in; nullptr when it is in none.
const HostAllocation* find_host(std::uint64_t address, std::uint64_t& start);
bool is_pinned(std::uint64_t address, std::uint64_t bytes);
// Does managed memory begin there?
bool is_managed(std::uint64_t address);
// Frees host memory that nothing uses any more.
CUresult free_host(Driver& driver, std::uint64_t address);

}  // namespace emulator::cuda
