#include "cuda/execution/stream.hpp"

#include <algorithm>

#include "cuda/driver/per_thread.hpp"
#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"

namespace emulator::cuda {

CUresult make_stream(Driver& driver, Context& context, int priority, unsigned flags, Stream*& made) {
    std::vector<bool>& slots = objects().stream_slots;
    const auto free_slot = std::ranges::find(slots, false);
    if (free_slot == slots.end()) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto slot = static_cast<std::uint32_t>(free_slot - slots.begin());
    EMULATOR_TRY(driver.connection.call(
        {.call = wire::Call::kOpenStream, .context = context.slot, .stream = slot, .priority = priority}));
    slots[slot] = true;
    made = new Stream{&context, slot, priority, flags};
    made->submitted = driver.connection.page().streams[slot].completed;  // the slot's numbers go on
    objects().streams.insert(made);
    context.streams.insert(made);
    for (const Point point : context.awaited) EMULATOR_TRY(append_wait(driver, *made, point));
    if (context.base)
        for (const Point point : context.base->awaited) EMULATOR_TRY(append_wait(driver, *made, point));
    return CUDA_SUCCESS;
}

CUresult detach_stream(Driver& driver, Stream& stream) {
    leave_capture(stream);
    const CUresult result = driver.connection.call(
        {.call = wire::Call::kCloseStream, .context = stream.context->slot, .stream = stream.slot});
    objects().stream_slots[stream.slot] = false;
    objects().streams.erase(&stream);
    stream.context->streams.erase(&stream);
    objects().detached.insert(&stream);
    return result;
}

CUresult destroy_stream(Driver& driver, Stream& stream) {
    const CUresult result = detach_stream(driver, stream);
    objects().detached.erase(&stream);
    delete &stream;
    return result;
}

Stream* find_stream(Driver& driver, CUstream handle) {
    Context* context = current_place();
    if (handle == nullptr && per_thread::Scope::active()) handle = CU_STREAM_PER_THREAD;
    if (handle == nullptr || handle == CU_STREAM_LEGACY) return context ? context->legacy : nullptr;
    if (handle != CU_STREAM_PER_THREAD) return named(objects().streams, handle);
    if (!context || context->base) return nullptr;  // a green context has none
    Stream*& stream = context->per_thread[std::this_thread::get_id()];
    if (!stream && make_stream(driver, *context, 0, CU_STREAM_DEFAULT, stream) != CUDA_SUCCESS) return nullptr;
    return stream;
}

CUresult begin_work(Driver& driver, Stream& stream) {
    const Context& context = *stream.context;
    EMULATOR_TRY(allow_work(stream));
    EMULATOR_TRY(context_error(driver, context));
    std::vector<const Stream*> before;
    if (&stream == context.legacy) {
        for (const Stream* other : context.streams)
            if (other != &stream && other->blocking()) before.push_back(other);
    } else if (stream.blocking()) {
        before.push_back(context.legacy);
    }
    for (const Stream* other : before) EMULATOR_TRY(append_wait(driver, stream, other->last()));
    return CUDA_SUCCESS;
}

CUresult submit(Driver& driver, Stream& stream, Task task) {
    if (stream.capture) return capture_task(stream, std::move(task));
    EMULATOR_TRY(begin_work(driver, stream));
    if (task.host.fn || task.callback) return append_host(driver, stream, task.host, task.callback);
    for (const wire::Request& request : task.work) EMULATOR_TRY(append(driver, stream, request));
    return CUDA_SUCCESS;
}

CUresult submit(Driver& driver, Stream& stream, const wire::Request& request) {
    const bool copy = request.operation == wire::Operation::kCopy;
    return submit(driver, stream,
                  Task{.type = copy ? CU_GRAPH_NODE_TYPE_MEMCPY : CU_GRAPH_NODE_TYPE_MEMSET, .work = {request}});
}

CUresult wait_for_room(Driver& driver, CUstream handle, std::unique_lock<std::mutex>& guard, Stream*& stream) {
    for (;;) {
        stream = find_stream(driver, handle);
        if (!stream) return no_such_stream(handle);
        if (stream->capture || stream->submitted < wire::kStreamDepth ||
            is_done(driver, {stream->slot, stream->submitted - wire::kStreamDepth + 1}))
            return CUDA_SUCCESS;
        const Point half{stream->slot, stream->submitted - wire::kStreamDepth / 2};
        EMULATOR_TRY(wait_for(driver, *stream->context, half, guard));
    }
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

namespace {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

template <typename Answer, typename Question>
CUresult ask(CUstream handle, Answer* answer, const Question& question) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    if (!answer) return CUDA_ERROR_INVALID_VALUE;
    *answer = question(*stream);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    EMULATOR_ENTER_CONTEXT();
    if (!stream || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
    Stream* made = nullptr;
    const CUresult result =
        make_stream(driver, *current_place(), std::clamp(priority, kGreatestPriority, kLeastPriority), flags, made);
    if (result == CUDA_SUCCESS) *stream = reinterpret_cast<CUstream>(made);
    return result;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    EMULATOR_ENTER_CONTEXT();
    if (least) *least = kLeastPriority;
    if (greatest) *greatest = kGreatestPriority;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, kLeastPriority);
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
    EMULATOR_ENTER();
    if (Stream* gone = named(objects().detached, handle)) {
        objects().detached.erase(gone);
        delete gone;
        return CUDA_SUCCESS;
    }
    const Stream* stream = named(objects().streams, handle);
    if (!stream) return no_such_handle();
    wait_for(driver, *stream->context, stream->last(), guard);
    Stream* still = named(objects().streams, handle);
    return still ? destroy_stream(driver, *still) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    EMULATOR_TRY(allow_query(*stream));
    EMULATOR_TRY(allow_unsafe_call());
    return synchronize(driver, *stream->context, stream->last(), guard);
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    EMULATOR_TRY(allow_query(*stream));
    EMULATOR_TRY(allow_unsafe_call());
    return query(driver, *stream->context, stream->last());
}

CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int* priority) {
    return ask(handle, priority, [](const Stream& stream) { return stream.priority; });
}

CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned* flags) {
    return ask(handle, flags, [](const Stream& stream) { return stream.flags; });
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* context) {
    return ask(handle, context, [](const Stream& stream) { return reinterpret_cast<CUcontext>(stream.context); });
}

CUresult CUDAAPI cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    if (!context || !green) return CUDA_ERROR_INVALID_VALUE;
    *context = reinterpret_cast<CUcontext>(&stream->context->whole());
    *green = stream->context->base ? reinterpret_cast<CUgreenCtx>(stream->context) : nullptr;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
    return ask(handle, green, [](const Stream& stream) {
        return stream.context->base ? reinterpret_cast<CUgreenCtx>(stream.context) : nullptr;
    });
}

CUresult CUDAAPI cuStreamSetAttribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue* value) {
    EMULATOR_ENTER();
    Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    stream->attributes[id] = *value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetAttribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue* value) {
    return ask(handle, value, [id](const Stream& stream) {
        const auto set = stream.attributes.find(id);
        return set == stream.attributes.end() ? CUstreamAttrValue{} : set->second;
    });
}

CUresult CUDAAPI cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle) {
    EMULATOR_ENTER();
    Stream* to = find_stream(driver, to_handle);
    const Stream* from = find_stream(driver, from_handle);
    if (!to || !from) return no_such_stream(to ? from_handle : to_handle);
    to->attributes = from->attributes;
    return CUDA_SUCCESS;
}

// Nothing here draws, so that there is no such resource.
CUresult CUDAAPI cuGraphicsMapResources(unsigned count, CUgraphicsResource*, CUstream handle) {
    EMULATOR_ENTER();
    if (!find_stream(driver, handle)) return no_such_stream(handle);
    return count == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuGraphicsUnmapResources(unsigned count, CUgraphicsResource* resources, CUstream handle) {
    return cuGraphicsMapResources(count, resources, handle);
}

CUresult CUDAAPI cuStreamGetDevice(CUstream handle, CUdevice* device) {
    return ask(handle, device, [](const Stream& stream) { return static_cast<CUdevice>(stream.context->gpu); });
}

CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long* id) {
    return ask(handle, id, [](const Stream& stream) { return stream.id; });
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
    EMULATOR_ENTER();
    Stream* stream = nullptr;
    EMULATOR_TRY(wait_for_room(driver, handle, guard, stream));
    const Event* event = named(objects().events, event_handle);
    if (!event) return no_such_handle();
    if (flags != CU_EVENT_WAIT_DEFAULT) {
        if (flags != CU_EVENT_WAIT_EXTERNAL || !stream->capture) return CUDA_ERROR_INVALID_VALUE;
        return capture_task(*stream, {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event_handle});
    }
    if (event->capture || (stream->capture && event->recorded)) return capture_wait(*stream, *event);
    if (stream->capture || (!event->shared && !event->recorded)) return CUDA_SUCCESS;
    EMULATOR_TRY(begin_work(driver, *stream));  // also where there is nothing left to wait for
    return await_event(driver, *stream, *event);
}
