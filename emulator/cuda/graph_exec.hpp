// Graphs made ready to launch: a copy of the graph, and its operations in the order in which a stream does them.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cuda/driver.hpp"
#include "cuda/graph.hpp"

namespace emulator::cuda {

// One operation of a stream: a request, or a host function.
struct Step {
    const Node* node;
    wire::Request request = {};
    CUhostFn function = nullptr;
    void* argument = nullptr;
};

// A copy that the host does in its turn, for memory that the device cannot reach.
struct HostCopy {
    void* to;
    const void* from;
    std::size_t bytes;
};

struct Exec {
    std::unique_ptr<Graph> graph;
    std::map<const Node*, Node*> nodes;  // of the graph that it was made of, and where they are in its own
    std::vector<Step> steps;
    std::vector<std::shared_ptr<GraphMemory>> allocated;  // by its nodes
    std::vector<std::shared_ptr<GraphMemory>> freed;
    bool frees_before_launch = false;               // what an earlier launch has left allocated
    std::vector<std::unique_ptr<HostCopy>> copies;  // arguments of steps
    std::vector<void*> pinned;                      // memory that the copies go through
    // The last launch: launches of one graph come one after the other.
    Context* context = nullptr;
    std::uint32_t stream = 0;
    std::uint64_t sequence = 0;

    Exec() = default;
    Exec(const Exec&) = delete;
    Exec& operator=(const Exec&) = delete;
    // Gives the pinned memory back. Without the driver's lock.
    ~Exec();
};

// Makes a graph ready. Takes the lock itself.
CUresult make_exec(Driver& driver, CUgraph handle, std::shared_ptr<Exec>& made);

}  // namespace emulator::cuda
