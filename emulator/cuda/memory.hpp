// Memory of a program: device memory by address, and host memory that the device reaches. The driver's lock is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "cuda/driver.hpp"

namespace emulator::cuda {

inline bool is_device(std::uint64_t address) { return address >= wire::kDeviceAddressBase; }
inline std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// The part, of those that are kept by their addresses, that an address is in; nullptr when it is in none. `start`: the
// part's own address.
template <typename Part>
const Part* find_part(const std::map<std::uint64_t, Part>& parts, std::uint64_t address, std::uint64_t& start) {
    auto it = parts.upper_bound(address);
    if (it == parts.begin()) return nullptr;
    --it;
    start = it->first;
    return address - start < it->second.bytes ? &it->second : nullptr;
}

// ---- device memory (memory.cpp)
// -------------------------------------------------------------------------------------------

// As cuMemAlloc: out of a page with others when it is small, and of its own otherwise.
CUresult allocate(Driver& driver, Context& context, std::uint64_t bytes, std::uint64_t& address);
// Frees what `allocate`, a pool or an import has made at `address`, without waiting for its use.
void free_allocation(Driver& driver, std::uint64_t address);
// The allocation that an address is in; nullptr when it is in none. `start`: its own address.
const Allocation* find_allocation(const Driver& driver, std::uint64_t address, std::uint64_t& start);
// Are all these addresses device memory that the program may use?
bool is_usable(const Driver& driver, std::uint64_t address, std::uint64_t bytes);
// Frees all that was allocated in a context.
void free_all_memory(Driver& driver, Context& context);

// ---- host memory (memory_host.cpp)
// ----------------------------------------------------------------------------------------

CUresult allocate_host(Driver& driver, Context& context, std::size_t bytes, void*& made);
// The host memory that an address is in; nullptr when it is in none.
const HostAllocation* find_host(const Driver& driver, std::uint64_t address, std::uint64_t& start);
bool is_pinned(const Driver& driver, std::uint64_t address, std::uint64_t bytes);
// Frees host memory that nothing uses any more.
CUresult free_host(Driver& driver, std::uint64_t address);

// ---- addresses that a program maps itself (memory_virtual.cpp)
// ------------------------------------------------------------

// Are all these addresses mapped and accessible?
bool is_mapped(const Driver& driver, std::uint64_t address, std::uint64_t bytes);

// ---- copies (memory_copy.cpp)
// ---------------------------------------------------------------------------------------------

// One copy between addresses of any kind. `wait`: return when it is done. Takes the lock itself.
CUresult copy(std::uint64_t to, std::uint64_t from, std::size_t bytes, CUstream stream, bool wait);
// `count` elements of `width` bytes: 1, 2 or 4. Takes the lock itself.
CUresult fill(std::uint64_t to, std::uint32_t value, std::uint32_t width, std::size_t count, CUstream stream);

// ---- arrays (memory_array.cpp)
// --------------------------------------------------------------------------------------------

// Puts the arrays that a copy names as the memory that they are. Takes the lock itself.
CUresult resolve_arrays(CUDA_MEMCPY3D& copy);

}  // namespace emulator::cuda
