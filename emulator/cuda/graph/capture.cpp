#include "cuda/graph/capture.hpp"

#include <algorithm>

#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/stream.hpp"

namespace emulator::cuda {

GraphCapture& up_to_date(const Stream& stream) {
    auto& capture = static_cast<GraphCapture&>(*stream.capture);  // there are no others
    std::vector<std::unique_ptr<Node>>& nodes = capture.graph->nodes;
    while (nodes.size() < capture.kept.size()) {
        const auto& [task, needs] = capture.kept[nodes.size()];
        Node node{.task = task};
        for (const std::size_t place : needs) node.needs.push_back(nodes[place].get());
        capture.graph->add(std::move(node));
    }
    return capture;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    EMULATOR_ENTER();
    Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = std::make_shared<GraphCapture>(
        Capture{.id = new_id(), .mode = mode, .thread = std::this_thread::get_id(), .origin = stream});
    stream->capture->streams.insert(stream);
    objects().captures.insert(stream->capture.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* graph) {
    EMULATOR_ENTER();
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    *graph = nullptr;
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) {
        end_capture(*capture);  // as the driver does, 580.159.04
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if (capture->origin != stream) {
        capture->valid = false;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    const bool complete = is_joined(*capture);
    GraphCapture& whole = up_to_date(*stream);
    end_capture(*capture);
    if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!complete) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *graph = publish(std::move(whole.graph));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** nodes, const CUgraphEdgeData** edges,
                                           std::size_t* count) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    const Context& context = *stream->context;
    const auto captures_blocking = [](const Stream* other) { return other->capture && other->blocking(); };
    if (stream == context.legacy && std::ranges::any_of(context.streams, captures_blocking))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = !stream->capture         ? CU_STREAM_CAPTURE_STATUS_NONE
              : stream->capture->valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                       : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    const GraphCapture& capture = up_to_date(*stream);
    static thread_local std::vector<CUgraphNode> last;
    static thread_local std::vector<CUgraphEdgeData> plain;  // as all edges are
    last.clear();
    for (const std::size_t place : stream->captured) last.push_back(handle_of(capture.graph->nodes[place].get()));
    plain.assign(last.size(), {});
    if (id) *id = capture.id;
    if (graph) *graph = handle_of(capture.graph.get());
    if (nodes) *nodes = last.data();
    if (edges) *edges = plain.data();
    if (count) *count = last.size();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** nodes, std::size_t* count) {
    return cuStreamGetCaptureInfo_v3(handle, status, id, graph, nodes, nullptr, count);
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    return cuStreamGetCaptureInfo_v3(handle, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}
