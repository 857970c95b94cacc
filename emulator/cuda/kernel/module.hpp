// Modules, and the kernels found in them. The driver's lock is held.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/execution/objects.hpp"

namespace emulator::cuda {

inline constexpr unsigned kUsualShared = 49152;  // bytes of a block, unless a function is set to have more, up to
inline constexpr unsigned kMaxShared = 232448;

struct Function {
    std::uint32_t kernel;  // index into the table of emulated kernels
    std::vector<std::uint32_t> parameter_sizes;
    std::vector<std::uint32_t> parameter_offsets;
    std::uint32_t parameter_bytes;
    unsigned shared_bytes = kUsualShared;  // of a block, which a launch may ask for at most
};

// nullptr when the handle names none.
const Function* find_function(CUfunction handle);
// A context that is destroyed takes the code of its modules along.
void drop_code(Driver& driver, const Context& context);

}  // namespace emulator::cuda
