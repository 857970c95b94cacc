// Events: points in a stream, with the model time at which they were passed.
#pragma once

#include "cuda/execution/objects.hpp"

namespace emulator::cuda {

// The driver's lock is held.
void destroy_event(Event& event);

}  // namespace emulator::cuda
