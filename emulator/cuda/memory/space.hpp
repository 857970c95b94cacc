// The card's memory and the addresses that it is put at. The driver's lock is held.
#pragma once

#include <cstdint>
#include <map>

#include "cuda/driver/driver.hpp"

namespace emulator::cuda {

// Device memory at addresses of its own.
struct Block {
    std::uint64_t address = 0;
    DeviceMemory memory = {};
};

inline bool is_device(std::uint64_t address) { return address >= wire::kDeviceAddressBase; }
inline std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// The part, of those that are kept by their addresses, that an address is in; nullptr when it is in none. `start`: the
// part's own address.
template <typename Part>
Part* find_part(std::map<std::uint64_t, Part>& parts, std::uint64_t address, std::uint64_t& start) {
    auto it = parts.upper_bound(address);
    if (it == parts.begin()) return nullptr;
    --it;
    start = it->first;
    return address - start < it->second.bytes ? &it->second : nullptr;
}

// CUDA_ERROR_OUT_OF_MEMORY when there is no more, also after unused memory was given back.
CUresult take_memory(Driver& driver, std::uint32_t gpu, std::uint64_t bytes, DeviceMemory& memory);
CUresult make_block(Driver& driver, std::uint32_t gpu, std::uint64_t bytes, Block& block);
// Gives the block's memory its addresses.
CUresult map_block(Driver& driver, Block& block);
void drop_block(Driver& driver, const Block& block);

// Addresses, a multiple of 2 MiB; 0 when there are none. `wanted` is taken if it is free.
std::uint64_t reserve_addresses(Driver& driver, std::uint64_t bytes, std::uint64_t alignment = 1,
                                std::uint64_t wanted = 0);
void release_addresses(Driver& driver, std::uint64_t address, std::uint64_t bytes);
CUresult map_memory(Driver& driver, std::uint64_t address, const DeviceMemory& memory, std::uint64_t bytes);
CUresult unmap_memory(Driver& driver, std::uint64_t address, std::uint64_t bytes);

}  // namespace emulator::cuda
