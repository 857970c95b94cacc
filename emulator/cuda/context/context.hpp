// Contexts: the primary one of each GPU, those made by hand, and the stack of the calling thread.
#pragma once

#include "cuda/driver/exports.hpp"

namespace emulator::cuda {

// cuDevicePrimaryCtxRetain, for calls out of this library: nothing that is preloaded stands before it.
CUresult retain_primary(CUcontext* handle, CUdevice device);

}  // namespace emulator::cuda
