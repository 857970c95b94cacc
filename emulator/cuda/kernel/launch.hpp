// Kernels as the device takes them, from what launches and nodes of graphs say.
#pragma once

#include "cuda/execution/task.hpp"

namespace emulator::cuda {

struct Shape {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
};

// A kernel with the parameters' values as they are now: of `values` or else `extra`. The driver's lock is held.
CUresult make_launch(CUfunction function, const Shape& shape, void** values, void** extra, Task& made);

}  // namespace emulator::cuda
