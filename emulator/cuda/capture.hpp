// Stream capture: work on a capturing stream becomes nodes of a graph. The driver's lock is held throughout.
#pragma once

#include <memory>
#include <set>
#include <thread>

#include "cuda/driver.hpp"
#include "cuda/graph.hpp"

namespace emulator::cuda {

// One capture: the stream that it began in, and those that joined it by waiting for its events.
struct Capture {
    cuuint64_t id;
    CUstreamCaptureMode mode;
    std::thread::id thread;  // that began it
    Stream* origin;
    std::set<Stream*> streams = {};
    std::unique_ptr<Graph> graph = std::make_unique<Graph>();
    bool valid = true;
    bool ended = false;
};

// May the calling thread make a call that could get in the way of a capture, such as allocating memory? If not, the
// capture has failed.
CUresult allow_unsafe_call(Driver& driver);
// May a stream be waited for or asked about? If not, the capture has failed.
CUresult allow_query(Driver& driver, const Stream& stream);
// May work be queued in a stream that does not capture? Not in the default stream while a blocking one captures.
CUresult allow_work(const Stream& stream);
// The same for waiting for a context.
CUresult allow_synchronize(const Context& context);

// Adds a node behind what the capturing stream has captured so far, as `node`.
CUresult capture_node(Stream& stream, CUgraphNodeType type, Node*& node);
// Adds one operation as a node.
CUresult capture_work(Stream& stream, const wire::Request& request);
// Allocates and frees memory by nodes.
CUresult capture_allocation(Driver& driver, Stream& stream, std::uint64_t bytes, std::uint64_t& address);
CUresult capture_free(Stream& stream, std::uint64_t address);
// Makes a stream wait for an event that was recorded in a capture.
CUresult capture_wait(Stream& stream, const Event& event);

// Takes a stream out of its capture, which fails if it still goes on.
void leave_capture(Stream& stream);

}  // namespace emulator::cuda
