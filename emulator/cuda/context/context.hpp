// Contexts: the primary one of each GPU, those made by hand, and the stack of the calling thread.
#pragma once

#include "cuda/driver/exports.hpp"
#include "cuda/execution/objects.hpp"

namespace emulator::cuda {

// The handle of a GPU's primary context, which need not be made: until cuDevicePrimaryCtxRetain makes it, and after its
// end, what uses the handle fails (709). Seen on an H200 with driver 580.159.04.
CUresult name_primary(CUcontext* handle, CUdevice device);

// The end of a green context, whose streams are left behind, detached. The driver's lock is held.
void drop_part(Driver& driver, Context& green);

}  // namespace emulator::cuda
