// What launches in streams and nodes of graphs have in common.
#pragma once

#include <mutex>

#include "cuda/driver.hpp"
#include "cuda/module.hpp"

namespace emulator::cuda {

struct Shape {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
};

// One kernel as the device takes it, with the parameters' values as they are now: of `values` or else `extra`.
CUresult make_launch(const Function& function, const Shape& shape, void** values, void** extra, wire::Request& made);

// The stream that a handle names, once a launch fits in it: it is kept no longer than a real channel's ring. Waits
// without the lock.
CUresult wait_for_room(Driver& driver, CUstream handle, std::unique_lock<std::mutex>& guard, Stream*& stream);

// Queues a host function behind the last operation, whatever other streams do.
CUresult append_host(Driver& driver, Stream& stream, CUhostFn function, void* argument);

}  // namespace emulator::cuda
