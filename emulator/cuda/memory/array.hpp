// Arrays and mipmapped arrays: memory with a shape. Rows follow one another without gaps.
#pragma once

#include "cuda/driver/exports.hpp"

namespace emulator::cuda {

// Puts the arrays that a copy names as the memory that they are. Takes the driver's lock itself.
CUresult resolve_arrays(CUDA_MEMCPY3D& copy);

}  // namespace emulator::cuda
