// The functions of a copy of libcuda that the engine itself uses, unhooked.
#pragma once

#include <cuda.h>

namespace runlist::operations {

#define CALLS "operations/calls.inc"
#include "driver/calls.inc"
#undef CALLS

}  // namespace runlist::operations
