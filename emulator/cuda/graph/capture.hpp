// Captures as the graphs that come of them.
#pragma once

#include <memory>

#include "cuda/execution/objects.hpp"
#include "cuda/graph/graph.hpp"

namespace emulator::cuda {

// A capture with its graph.
struct GraphCapture : Capture {
    std::unique_ptr<Graph> graph = std::make_unique<Graph>();
};

// The capture of a capturing stream, with all that it has kept in its graph: one node for each task.
GraphCapture& up_to_date(const Stream& stream);

}  // namespace emulator::cuda
