#include "cuda/capture.hpp"

#include <algorithm>
#include <utility>

#include "cuda/graph_memory.hpp"

namespace emulator::cuda {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Those that go on. Guarded by the driver's lock.
std::set<Capture*>& captures() {
    static auto* const all = new std::set<Capture*>;  // never destroyed, as the driver
    return *all;
}

bool blocking(const Stream& stream) { return (stream.flags & CU_STREAM_NON_BLOCKING) == 0; }

// Ends a capture: its streams and the events recorded in it are no part of it any more.
void end(Capture& capture) {
    capture.ended = true;
    captures().erase(&capture);
    const std::shared_ptr<Capture> kept = capture.origin->capture;  // the streams hold it
    for (Stream* stream : std::exchange(capture.streams, {})) {
        stream->capture.reset();
        stream->captured.clear();
    }
}

// Makes the captures of the context's blocking streams fail. Were there any?
bool disturb_blocking(const Context& context) {
    bool any = false;
    for (const Stream* stream : context.streams) {
        if (!stream->capture || !blocking(*stream)) continue;
        stream->capture->valid = false;
        any = true;
    }
    return any;
}

// Is all that the capture's other streams did something that its origin waits for?
bool joined(const Capture& capture) {
    return std::ranges::all_of(capture.streams, [&](const Stream* stream) {
        return std::ranges::all_of(stream->captured,
                                   [&](const Node* node) { return reaches(capture.origin->captured, node); });
    });
}

void add_missing(std::vector<Node*>& nodes, const std::vector<Node*>& more) {
    for (Node* node : more)
        if (std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
}

}  // namespace

CUresult allow_unsafe_call(Driver&) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (Capture* capture : captures()) {
        if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
        const bool everywhere =
            capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!everywhere && capture->thread != std::this_thread::get_id()) continue;
        capture->valid = false;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult allow_query(Driver&, const Stream& stream) {
    if (!stream.capture) return allow_work(stream);
    stream.capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult allow_work(const Stream& stream) {
    const bool implicit = &stream == stream.context->legacy && disturb_blocking(*stream.context);
    return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult allow_synchronize(const Context& context) {
    CUresult result = CUDA_SUCCESS;
    for (const Stream* stream : context.streams) {
        if (!stream->capture) continue;
        stream->capture->valid = false;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult capture_node(Stream& stream, CUgraphNodeType type, Node*& node) {
    if (!stream.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    node = &stream.capture->graph->add({.type = type, .needs = stream.captured});
    stream.captured = {node};
    return CUDA_SUCCESS;
}

CUresult capture_work(Stream& stream, const wire::Request& request) {
    const bool copy = request.operation == wire::Operation::kCopy;
    Node* node = nullptr;
    const CUresult result = capture_node(stream, copy ? CU_GRAPH_NODE_TYPE_MEMCPY : CU_GRAPH_NODE_TYPE_MEMSET, node);
    if (result == CUDA_SUCCESS) node->work = {request};
    return result;
}

CUresult capture_allocation(Driver& driver, Stream& stream, std::uint64_t bytes, std::uint64_t& address) {
    std::shared_ptr<GraphMemory> memory;
    const auto gpu = static_cast<std::uint32_t>(stream.context->gpu);
    if (const CUresult result = reserve_graph_memory(driver, gpu, bytes, memory); result != CUDA_SUCCESS) return result;
    Node* node = nullptr;
    if (const CUresult result = capture_node(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, node); result != CUDA_SUCCESS)
        return result;
    address = memory->address;
    node->memory = std::move(memory);
    return CUDA_SUCCESS;
}

CUresult capture_free(Stream& stream, std::uint64_t address) {
    std::shared_ptr<GraphMemory> memory = find_graph_memory(address);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    Node* node = nullptr;
    const CUresult result = capture_node(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, node);
    if (result == CUDA_SUCCESS) node->memory = std::move(memory);
    return result;
}

CUresult capture_wait(Stream& stream, const Event& event) {
    const bool open = event.capture && !event.capture->ended;
    if (!open) {
        // A graph cannot wait for what was recorded outside it, nor a stream for what never ran.
        if (!stream.capture) return CUDA_ERROR_CAPTURED_EVENT;
        stream.capture->valid = false;
        return event.capture ? CUDA_ERROR_CAPTURED_EVENT : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (!event.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream.capture && stream.capture != event.capture) {
        stream.capture->valid = event.capture->valid = false;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (&stream == stream.context->legacy) {
        event.capture->valid = false;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    stream.capture = event.capture;
    stream.capture->streams.insert(&stream);
    add_missing(stream.captured, event.captured);
    return CUDA_SUCCESS;
}

void leave_capture(Stream& stream) {
    const std::shared_ptr<Capture> capture = stream.capture;
    if (!capture) return;
    capture->valid = false;
    if (capture->origin == &stream) return end(*capture);
    capture->streams.erase(&stream);
    stream.capture.reset();
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    EMULATOR_ENTER();
    static cuuint64_t next_id = 0;
    Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    auto capture = std::make_shared<Capture>(++next_id, mode, std::this_thread::get_id(), stream);
    capture->streams.insert(stream);
    captures().insert(capture.get());
    stream->capture = std::move(capture);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    EMULATOR_ENTER();
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    *graph = nullptr;
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (capture->origin != stream) {
        capture->valid = false;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    const bool complete = joined(*capture);
    end(*capture);
    if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!complete) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *graph = publish(std::move(capture->graph));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** nodes, const CUgraphEdgeData** edges,
                                           std::size_t* count) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    const Context& context = *stream->context;
    const auto captures_blocking = [](const Stream* other) { return other->capture && blocking(*other); };
    if (stream == context.legacy && std::ranges::any_of(context.streams, captures_blocking))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    const Capture* capture = stream->capture.get();
    *status = !capture         ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                               : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id) *id = capture->id;
    if (graph) *graph = handle_of(capture->graph.get());
    if (nodes) *nodes = reinterpret_cast<const CUgraphNode*>(stream->captured.data());
    if (edges) {
        static thread_local std::vector<CUgraphEdgeData> plain;  // as all edges are
        plain.assign(stream->captured.size(), {});
        *edges = plain.data();
    }
    if (count) *count = stream->captured.size();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** nodes, std::size_t* count) {
    return cuStreamGetCaptureInfo_v3(handle, status, id, graph, nodes, nullptr, count);
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    return cuStreamGetCaptureInfo_v3(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return CUDA_SUCCESS;
}
