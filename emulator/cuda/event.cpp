// Events: points in a stream, with the model time at which they were passed.
#include <algorithm>

#include "cuda/capture.hpp"
#include "cuda/driver.hpp"
#include "cuda/launch.hpp"
#include "cuda/memory_pool.hpp"

using namespace emulator;
using namespace emulator::cuda;

namespace {

Event* from(const Driver& driver, CUevent handle) {
    auto* event = reinterpret_cast<Event*>(handle);
    return driver.events.contains(event) ? event : nullptr;
}

// May the event be asked about? Not one that stands for nodes of a graph, and not in the way of a capture.
CUresult allow_look(Driver& driver, const Event& event) {
    if (!event.capture) return allow_unsafe_call(driver);
    event.capture->valid = false;
    return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

CUresult CUDAAPI cuEventCreate(CUevent* handle, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const auto free_slot = std::ranges::find(driver.event_slots, false);
    if (free_slot == driver.event_slots.end()) return CUDA_ERROR_OUT_OF_MEMORY;
    *free_slot = true;
    auto* event = new Event{&context, static_cast<std::uint32_t>(free_slot - driver.event_slots.begin()), flags};
    driver.events.insert(event);
    *handle = reinterpret_cast<CUevent>(event);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent handle) {
    EMULATOR_ENTER();
    Event* event = from(driver, handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    driver.event_slots[event->slot] = false;
    driver.events.erase(event);
    delete event;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream_handle) {
    EMULATOR_ENTER();
    Event* event = from(driver, handle);
    Stream* stream = nullptr;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = wait_for_room(driver, stream_handle, guard, stream); result != CUDA_SUCCESS)
        return result;
    if (stream->capture) {
        if (!stream->capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        event->capture = stream->capture;
        event->captured = stream->captured;
        return CUDA_SUCCESS;
    }
    wire::Request request{.operation = wire::Operation::kRecord};
    request.record = {.event = event->slot};
    const CUresult result = submit(driver, *stream, request);
    if (result != CUDA_SUCCESS) return result;
    event->capture.reset();
    event->recorded = true;
    event->stream = stream->slot;
    event->sequence = stream->submitted;
    return CUDA_SUCCESS;
}

// Nodes that record events are not modelled.
CUresult CUDAAPI cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned flags) {
    return flags == CU_EVENT_RECORD_DEFAULT ? cuEventRecord(handle, stream) : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
    EMULATOR_ENTER();
    const Event* event = from(driver, handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = allow_look(driver, *event); result != CUDA_SUCCESS) return result;
    if (!event->recorded) return CUDA_SUCCESS;
    const Context& context = *event->context;
    const std::uint32_t stream = event->stream;
    const std::uint64_t sequence = event->sequence;
    guard.unlock();
    const CUresult result = wait_for(driver, context, stream, sequence);
    guard.lock();
    trim_pools(driver);
    return result;
}

CUresult CUDAAPI cuEventQuery(CUevent handle) {
    EMULATOR_ENTER();
    const Event* event = from(driver, handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = allow_look(driver, *event); result != CUDA_SUCCESS) return result;
    if (!event->recorded || is_done(driver, event->stream, event->sequence))
        return context_error(driver, *event->context);
    driver.connection.post({.call = wire::Call::kWatch,
                            .context = event->context->slot,
                            .stream = event->stream,
                            .sequence = event->sequence});
    return CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventElapsedTime_v2(float* milliseconds, CUevent start_handle, CUevent end_handle) {
    EMULATOR_ENTER();
    const Event* start = from(driver, start_handle);
    const Event* end = from(driver, end_handle);
    if (!start || !end) return CUDA_ERROR_INVALID_HANDLE;
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    for (const Event* event : {start, end}) {
        if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
        if (!event->recorded || (event->flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_HANDLE;
        if (!is_done(driver, event->stream, event->sequence)) return CUDA_ERROR_NOT_READY;
    }
    const auto& times = driver.connection.page().event_time;
    *milliseconds = static_cast<float>(static_cast<double>(times[end->slot] - times[start->slot]) / 1e6);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime_v1(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
