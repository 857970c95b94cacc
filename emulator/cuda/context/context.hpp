// Contexts: the primary one of each GPU, those made by hand, and the stack of the calling thread.
#pragma once

#include "cuda/driver/exports.hpp"

namespace emulator::cuda {

// The handle of a GPU's primary context, which need not be made: until cuDevicePrimaryCtxRetain makes it, and after its
// end, what uses the handle fails (709). Seen on an H200 with driver 580.159.04.
CUresult name_primary(CUcontext* handle, CUdevice device);

}  // namespace emulator::cuda
