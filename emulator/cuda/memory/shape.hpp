// Copies and fills of rows and slices, as the linear operations that the device is given.
#pragma once

#include <vector>

#include "cuda/driver/exports.hpp"
#include "shared/protocol.hpp"

namespace emulator::cuda {

// Rows that lie behind each other on both sides become one operation. What has no extent becomes none.
CUresult copies_of(const CUDA_MEMCPY3D& copy, std::vector<wire::Request>& made);
CUresult fills_of(const CUDA_MEMSET_NODE_PARAMS& fill, std::vector<wire::Request>& made);

}  // namespace emulator::cuda
