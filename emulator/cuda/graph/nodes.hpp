// What nodes of graphs are made of.
#pragma once

#include "cuda/execution/task.hpp"

namespace emulator::cuda {

// The task of a kernel with these parameters. The driver's lock is held.
CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& parameters, Task& made);

}  // namespace emulator::cuda
