// Events: points in a stream, with the model time at which they were passed.
#include <algorithm>

#include "driver.hpp"

using namespace emulator;
using namespace emulator::cuda;

namespace {

Event* from(const Driver& driver, CUevent handle) {
    auto* event = reinterpret_cast<Event*>(handle);
    return driver.events.contains(event) ? event : nullptr;
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
    Stream* stream = find_stream(driver, stream_handle);
    if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
    wire::Request request{.operation = wire::Operation::kRecord};
    request.record = {.event = event->slot};
    const CUresult result = submit(driver, *stream, request);
    if (result != CUDA_SUCCESS) return result;
    event->recorded = true;
    event->stream = stream->slot;
    event->sequence = stream->submitted;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned) {
    return cuEventRecord(handle, stream);
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
    EMULATOR_ENTER();
    const Event* event = from(driver, handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (!event->recorded) return CUDA_SUCCESS;
    const Context& context = *event->context;
    const std::uint32_t stream = event->stream;
    const std::uint64_t sequence = event->sequence;
    guard.unlock();
    return wait_for(driver, context, stream, sequence);
}

CUresult CUDAAPI cuEventQuery(CUevent handle) {
    EMULATOR_ENTER();
    const Event* event = from(driver, handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
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
