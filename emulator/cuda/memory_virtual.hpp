// Physical memory that programs map at addresses themselves. The driver's lock is held.
#pragma once

#include "cuda/driver.hpp"

namespace emulator::cuda {

// What a CUmemGenericAllocationHandle names. Goes when neither a handle nor a mapping needs it.
struct Physical {
    DeviceMemory memory;
    CUmemAllocationProp properties;
    unsigned handles = 1;
    unsigned mappings = 0;
};

// nullptr when the handle names none.
Physical* find_physical(CUmemGenericAllocationHandle handle);
// Makes a handle of device memory, which it owns from then on.
CUmemGenericAllocationHandle adopt_physical(const DeviceMemory& memory, const CUmemAllocationProp& properties);

}  // namespace emulator::cuda
