// The one way from here to the driver's open file: what ioctl() is for a real libcuda.
#pragma once

#include <cstdint>

// As ioctl(2): 0, or -1 with errno set. Called through the linkage table only, so that a preloaded library can take its
// place; `request` is _IOWR('F', number, size of what `argument` points to).
namespace emulator::cuda {

// Is there a file on which answered requests are repeated as true ioctls? Repeats one.
bool has_twin();
void repeat_on_twin(unsigned long request, void* argument);

}  // namespace emulator::cuda

extern "C" __attribute__((visibility("default"), noinline)) int runlist_emulated_ioctl(int descriptor,
                                                                                       unsigned long request,
                                                                                       void* argument);
