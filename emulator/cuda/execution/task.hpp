// What streams and graphs are given to do, as plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/driver/exports.hpp"
#include "cuda/driver/rm_client.hpp"
#include "shared/protocol.hpp"

namespace emulator::cuda {

// What a stream calls also when its context has failed, and tells so.
using StatusFunction = void (*)(void* data, CUresult status);

// A place in a stream: behind its operation of this number.
struct Point {
    std::uint32_t stream = 0;  // slot
    std::uint64_t sequence = 0;
};

// Memory that graphs allocate (memory/graph.hpp). Named by the nodes that allocate and free it, in the graph and in all
// copies of it.
struct GraphMemory {
    std::uint64_t address;
    std::uint64_t bytes;  // whole pages
    std::uint32_t gpu;
    DeviceMemory memory = {};  // of no bytes while there is none
    bool in_use = false;       // allocated by a launch, and not freed since
    Point last_use = {};
};

// A task holds its work as the operations that the device is given, made when the task is: what a program changes
// afterwards in the memory that its parameters came from changes nothing.
struct Task {
    CUgraphNodeType type;
    std::vector<wire::Request> work = {};      // of kernels, copies and fills: in order
    CUfunction function = nullptr;             // of kernels
    unsigned shared_bytes = 0;                 // of kernels
    CUDA_HOST_NODE_PARAMS host = {};           // of host functions
    StatusFunction callback = nullptr;         // of callbacks, in the place of `host.fn`
    CUevent event = nullptr;                   // of what records one, or waits for it
    std::shared_ptr<GraphMemory> memory = {};  // of what allocates and frees memory
};

}  // namespace emulator::cuda
