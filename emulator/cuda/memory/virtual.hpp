// Physical memory that programs map at addresses themselves. The driver's lock is held.
#pragma once

#include "cuda/memory/space.hpp"

namespace emulator::cuda {

// What a CUmemGenericAllocationHandle names. Goes when neither a handle nor a mapping needs it.
struct Physical {
    DeviceMemory memory;
    CUmemAllocationProp properties;
    unsigned handles = 1;
    unsigned mappings = 0;
};

// Are all these addresses mapped and accessible?
bool is_mapped(std::uint64_t address, std::uint64_t bytes);

// nullptr when the handle names none.
Physical* find_physical(CUmemGenericAllocationHandle handle);
// Makes a handle of device memory, which it owns from then on.
CUmemGenericAllocationHandle adopt_physical(const DeviceMemory& memory, const CUmemAllocationProp& properties);

}  // namespace emulator::cuda
