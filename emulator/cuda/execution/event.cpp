#include "cuda/execution/event.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/execution/stream.hpp"

namespace emulator::cuda {
namespace {

// May the event be asked about? Not one that stands for nodes of a graph, and not in the way of a capture.
CUresult allow_look(const Event& event) {
    if (!event.capture) return allow_unsafe_call();
    event.capture->valid = false;
    return CUDA_ERROR_CAPTURED_EVENT;
}

constexpr auto kLooksEvery = std::chrono::microseconds(50);

CUresult call_for(Driver& driver, wire::Call call, const Event& event, wire::Reply& reply) {
    wire::Request request{.call = call};
    request.sharing = {.key = event.key, .event = event.slot};
    return driver.connection.call(request, reply);
}

CUresult query_shared(Driver& driver, const Event& event) {
    wire::Reply reply{};
    EMULATOR_TRY(call_for(driver, wire::Call::kQueryEvent, event, reply));
    return reply.value != 0 ? context_error(driver, *event.context) : CUDA_ERROR_NOT_READY;
}

CUresult make_event(Context& context, unsigned flags, Event*& made) {
    std::vector<bool>& slots = objects().event_slots;
    const auto free_slot = std::ranges::find(slots, false);
    if (free_slot == slots.end()) return CUDA_ERROR_OUT_OF_MEMORY;
    *free_slot = true;
    made = new Event{&context, static_cast<std::uint32_t>(free_slot - slots.begin()), flags};
    objects().events.insert(made);
    return CUDA_SUCCESS;
}

// An event that is the device's, new or another process'.
CUresult make_shared_event(Driver& driver, Context& context, unsigned flags, wire::Call call, const wire::Key& key,
                           Event*& made) {
    EMULATOR_TRY(make_event(context, flags, made));
    made->key = key;
    wire::Reply reply{};
    const CUresult result = call_for(driver, call, *made, reply);
    if (result != CUDA_SUCCESS) {
        destroy_event(*made);
        return result;
    }
    if (call == wire::Call::kShareEvent) made->key = reply.key;
    made->shared = true;
    return CUDA_SUCCESS;
}

// What another process needs to have the event.
struct Ticket {
    std::uint64_t magic;
    wire::Key key;
    std::uint32_t client;  // whose it is
    std::uint32_t reserved;
};
constexpr std::uint64_t kMagic = 0x3154564553524C52;  // "RLRSEVT1"
static_assert(sizeof(Ticket) <= sizeof(CUipcEventHandle));

}  // namespace

void destroy_event(Event& event) {
    objects().event_slots[event.slot] = false;
    objects().events.erase(&event);
    delete &event;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuEventCreate(CUevent* handle, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    if (shared && (flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
    Event* made = nullptr;
    EMULATOR_TRY(shared ? make_shared_event(driver, context, flags, wire::Call::kShareEvent, {}, made)
                        : make_event(context, flags, made));
    *handle = reinterpret_cast<CUevent>(made);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent handle) {
    EMULATOR_ENTER();
    Event* event = named(objects().events, handle);
    if (!event) return no_such_handle();
    wire::Reply reply{};
    if (event->shared) call_for(driver, wire::Call::kForgetEvent, *event, reply);
    destroy_event(*event);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event_handle) {
    EMULATOR_ENTER();
    const Event* event = named(objects().events, event_handle);
    if (!event) return no_such_handle();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!event->shared) return CUDA_ERROR_INVALID_HANDLE;
    const Ticket ticket{.magic = kMagic, .key = event->key, .client = driver.rm.handle(), .reserved = 0};
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent* handle, CUipcEventHandle given) {
    EMULATOR_ENTER_CONTEXT();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    Ticket ticket;
    std::memcpy(&ticket, &given, sizeof ticket);
    if (ticket.magic != kMagic) return CUDA_ERROR_INVALID_VALUE;
    if (ticket.client == driver.rm.handle()) return CUDA_ERROR_INVALID_CONTEXT;  // its own
    Event* made = nullptr;
    constexpr unsigned kFlags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    EMULATOR_TRY(make_shared_event(driver, context, kFlags, wire::Call::kOpenEvent, ticket.key, made));
    *handle = reinterpret_cast<CUevent>(made);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent handle, CUstream stream_handle) {
    EMULATOR_ENTER();
    Stream* stream = nullptr;
    if (!named(objects().events, handle)) return no_such_handle();
    EMULATOR_TRY(wait_for_room(driver, stream_handle, guard, stream));
    Event* event = named(objects().events, handle);
    if (!event) return no_such_handle();
    if (&event->context->whole() != &stream->context->whole()) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) {
        if (!stream->capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        event->capture = stream->capture;
        event->captured = stream->captured;
        return CUDA_SUCCESS;
    }
    EMULATOR_TRY(begin_work(driver, *stream));
    return record_event(driver, *stream, *event);
}

// Of all that a context was given: a stream of the context's own waits for that, and records the event.
CUresult CUDAAPI cuCtxRecordEvent(CUcontext context_handle, CUevent handle) {
    EMULATOR_ENTER();
    Context* context = named(objects().contexts, context_handle);
    Event* event = named(objects().events, handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!event) return no_such_handle();
    EMULATOR_TRY(allow_synchronize(*context));
    if (event->shared) return CUDA_ERROR_NOT_SUPPORTED;
    if (!context->gathering) EMULATOR_TRY(make_stream(driver, *context, 0, CU_STREAM_NON_BLOCKING, context->gathering));
    for (const Stream* stream : streams_of(*context))
        if (stream != context->gathering) EMULATOR_TRY(append_wait(driver, *context->gathering, stream->last()));
    wire::Request request{.operation = wire::Operation::kRecord};
    request.record = {.event = event->slot};
    EMULATOR_TRY(append(driver, *context->gathering, request));
    event->capture.reset();
    event->recorded = true;
    event->point = context->gathering->last();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxWaitEvent(CUcontext context_handle, CUevent handle) {
    EMULATOR_ENTER();
    Context* context = named(objects().contexts, context_handle);
    const Event* event = named(objects().events, handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!event) return no_such_handle();
    if (event->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (event->shared) return CUDA_ERROR_NOT_SUPPORTED;
    EMULATOR_TRY(allow_synchronize(*context));
    if (!event->recorded) return CUDA_SUCCESS;
    for (Stream* stream : streams_of(*context)) EMULATOR_TRY(append_wait(driver, *stream, event->point));
    std::erase_if(context->awaited, [&](Point point) { return is_done(driver, point); });
    context->awaited.push_back(event->point);  // by streams that are yet to be made
    return CUDA_SUCCESS;
}

// A green context's handle is that of the part of the primary one that it stands for.
CUresult CUDAAPI cuGreenCtxRecordEvent(CUgreenCtx context, CUevent event) {
    return cuCtxRecordEvent(reinterpret_cast<CUcontext>(context), event);
}

CUresult CUDAAPI cuGreenCtxWaitEvent(CUgreenCtx context, CUevent event) {
    return cuCtxWaitEvent(reinterpret_cast<CUcontext>(context), event);
}

// With a flag it is a node of the graph that records it.
CUresult CUDAAPI cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned flags) {
    if (flags == CU_EVENT_RECORD_DEFAULT) return cuEventRecord(handle, stream_handle);
    EMULATOR_ENTER();
    Stream* stream = find_stream(driver, stream_handle);
    if (!stream) return no_such_stream(stream_handle);
    if (!named(objects().events, handle)) return no_such_handle();
    if (flags != CU_EVENT_RECORD_EXTERNAL || !stream->capture) return CUDA_ERROR_INVALID_VALUE;
    return capture_task(*stream, {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = handle});
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
    EMULATOR_ENTER();
    const Event* event = named(objects().events, handle);
    if (!event) return no_such_handle();
    while (event->shared) {
        const CUresult result = query_shared(driver, *event);
        if (result != CUDA_ERROR_NOT_READY) return result;
        guard.unlock();
        std::this_thread::sleep_for(kLooksEvery);
        guard.lock();
        event = named(objects().events, handle);
        if (!event) return no_such_handle();
    }
    if (const CUresult result = allow_look(*event); result != CUDA_SUCCESS || !event->recorded) return result;
    return synchronize(driver, *event->context, event->point, guard);
}

CUresult CUDAAPI cuEventQuery(CUevent handle) {
    EMULATOR_ENTER();
    const Event* event = named(objects().events, handle);
    if (!event) return no_such_handle();
    EMULATOR_TRY(allow_look(*event));
    if (event->shared) return query_shared(driver, *event);
    return query(driver, *event->context, event->point);
}

CUresult CUDAAPI cuEventElapsedTime_v2(float* milliseconds, CUevent start_handle, CUevent end_handle) {
    EMULATOR_ENTER();
    const Event* start = named(objects().events, start_handle);
    const Event* end = named(objects().events, end_handle);
    if (!start || !end) return no_such_handle();
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    for (const Event* event : {start, end}) {
        if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
        if (!event->recorded || (event->flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_HANDLE;
        if (!is_done(driver, event->point)) return CUDA_ERROR_NOT_READY;
    }
    const auto& times = driver.connection.page().event_time;
    *milliseconds = static_cast<float>(static_cast<double>(times[end->slot] - times[start->slot]) / 1e6);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventElapsedTime_v1(float* milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
