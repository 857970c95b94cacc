// Modules, and the kernels found in them. The driver's lock is held.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/execution/objects.hpp"

namespace emulator::cuda {

struct Function {
    std::uint32_t kernel;  // index into the table of emulated kernels
    std::vector<std::uint32_t> parameter_sizes;
    std::vector<std::uint32_t> parameter_offsets;
    std::uint32_t parameter_bytes;
};

// nullptr when the handle names none.
const Function* find_function(CUfunction handle);
// A context that is destroyed takes the code of its modules along.
void drop_code(Driver& driver, const Context& context);

}  // namespace emulator::cuda
