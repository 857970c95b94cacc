#include "cuda/execution/capture.hpp"

#include <algorithm>
#include <utility>

namespace emulator::cuda {
namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Makes the captures of some of the context's streams fail. Were there any?
bool disturb(const Context& context, bool blocking_only) {
    bool any = false;
    for (const Stream* stream : context.streams) {
        if (!stream->capture || (blocking_only && !stream->blocking())) continue;
        stream->capture->valid = false;
        any = true;
    }
    return any;
}

}  // namespace

CUresult allow_unsafe_call() {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (Capture* capture : objects().captures) {
        if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
        const bool everywhere =
            capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!everywhere && capture->thread != std::this_thread::get_id()) continue;
        capture->valid = false;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult allow_query(const Stream& stream) {
    if (!stream.capture) return allow_work(stream);
    stream.capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult allow_work(const Stream& stream) {
    const bool implicit = &stream == stream.context->legacy && disturb(*stream.context, true);
    return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult allow_synchronize(const Context& context) {
    return disturb(context, false) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_task(Stream& stream, Task task) {
    if (!stream.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    std::vector<Capture::Kept>& kept = stream.capture->kept;
    kept.push_back({std::move(task), std::exchange(stream.captured, {kept.size()})});
    return CUDA_SUCCESS;
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
    for (const std::size_t place : event.captured)
        if (std::ranges::find(stream.captured, place) == stream.captured.end()) stream.captured.push_back(place);
    return CUDA_SUCCESS;
}

bool is_joined(const Capture& capture) {
    std::set<std::size_t> reached(capture.origin->captured.begin(), capture.origin->captured.end());
    for (auto place = reached.rbegin(); place != reached.rend(); ++place)  // what it needs lies before it
        reached.insert(capture.kept[*place].needs.begin(), capture.kept[*place].needs.end());
    const auto known = [&](std::size_t place) { return reached.contains(place); };
    return std::ranges::all_of(capture.streams,
                               [&](const Stream* stream) { return std::ranges::all_of(stream->captured, known); });
}

void end_capture(Capture& capture) {
    capture.ended = true;
    objects().captures.erase(&capture);
    const std::shared_ptr<Capture> kept = capture.origin->capture;  // the streams hold it
    for (Stream* stream : std::exchange(capture.streams, {})) {
        stream->capture.reset();
        stream->captured.clear();
    }
}

void leave_capture(Stream& stream) {
    const std::shared_ptr<Capture> capture = stream.capture;
    if (!capture) return;
    capture->valid = false;
    if (capture->origin == &stream) return end_capture(*capture);
    capture->streams.erase(&stream);
    stream.capture.reset();
}

}  // namespace emulator::cuda

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, emulator::cuda::thread_mode);
    return CUDA_SUCCESS;
}
