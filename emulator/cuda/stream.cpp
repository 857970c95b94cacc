// Streams: queues of operations at the device, and waiting for them.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "cuda/capture.hpp"
#include "cuda/driver.hpp"
#include "cuda/entry_points.hpp"
#include "cuda/launch.hpp"
#include "cuda/memory_pool.hpp"
#include "shared/clock.hpp"

namespace emulator::cuda {

thread_local bool per_thread::Scope::active_ = false;

namespace {

// A wait looks at the word itself for as long as this at its beginning and around the expected end, and sleeps while
// the end is known to be further away: so a short wait is exact, and a long one leaves the processor to others.
constexpr Time kSpin = 150'000;
constexpr Time kCheckLost = 250'000'000;

bool blocking(const Stream& stream) { return (stream.flags & CU_STREAM_NON_BLOCKING) == 0; }

}  // namespace

bool is_done(Driver& driver, std::uint32_t slot, std::uint64_t sequence) {
    return driver.connection.page().streams[slot].completed.load(std::memory_order_acquire) >= sequence;
}

CUresult make_stream(Driver& driver, Context& context, int priority, unsigned flags, Stream*& made) {
    const auto free_slot = std::ranges::find(driver.stream_slots, false);
    if (free_slot == driver.stream_slots.end()) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto slot = static_cast<std::uint32_t>(free_slot - driver.stream_slots.begin());
    wire::Request request{
        .call = wire::Call::kOpenStream, .context = context.slot, .stream = slot, .priority = priority};
    wire::Reply reply{};
    if (const CUresult result = driver.connection.call(request, reply); result != CUDA_SUCCESS) return result;
    driver.stream_slots[slot] = true;
    made = new Stream{&context, slot, priority, flags};
    made->submitted = driver.connection.page().streams[slot].completed;  // the slot's numbers go on
    driver.streams.insert(made);
    context.streams.insert(made);
    return CUDA_SUCCESS;
}

CUresult destroy_stream(Driver& driver, Stream& stream) {
    leave_capture(stream);
    wire::Request request{.call = wire::Call::kCloseStream, .context = stream.context->slot, .stream = stream.slot};
    wire::Reply reply{};
    const CUresult result = driver.connection.call(request, reply);
    driver.stream_slots[stream.slot] = false;
    driver.streams.erase(&stream);
    stream.context->streams.erase(&stream);
    delete &stream;
    return result;
}

Stream* find_stream(Driver& driver, CUstream handle) {
    Context* context = current_context(driver);
    if (handle == nullptr && per_thread::Scope::active()) handle = CU_STREAM_PER_THREAD;
    if (handle == nullptr || handle == CU_STREAM_LEGACY) return context ? context->legacy : nullptr;
    if (handle == CU_STREAM_PER_THREAD) {
        if (!context) return nullptr;
        Stream*& stream = context->per_thread[std::this_thread::get_id()];
        if (!stream && make_stream(driver, *context, 0, CU_STREAM_DEFAULT, stream) != CUDA_SUCCESS) return nullptr;
        return stream;
    }
    auto* stream = reinterpret_cast<Stream*>(handle);
    return driver.streams.contains(stream) ? stream : nullptr;
}

CUresult append(Driver& driver, Stream& stream, wire::Request& request) {
    request.call = wire::Call::kSubmit;
    request.context = stream.context->slot;
    request.stream = stream.slot;
    request.sequence = ++stream.submitted;
    request.arrival = clock_now();
    return driver.connection.post(request);
}

CUresult append_wait(Driver& driver, Stream& stream, std::uint32_t slot, std::uint64_t sequence) {
    if (is_done(driver, slot, sequence)) return CUDA_SUCCESS;
    wire::Request request{.operation = wire::Operation::kDepend};
    request.depend = {.sequence = sequence, .stream = slot};
    return append(driver, stream, request);
}

CUresult begin_work(Driver& driver, Stream& stream) {
    const Context& context = *stream.context;
    if (const CUresult result = allow_work(stream); result != CUDA_SUCCESS) return result;
    if (const CUresult error = context_error(driver, context); error != CUDA_SUCCESS) return error;
    std::vector<const Stream*> before;
    if (&stream == context.legacy) {
        for (const Stream* other : context.streams)
            if (other != &stream && blocking(*other)) before.push_back(other);
    } else if (blocking(stream)) {
        before.push_back(context.legacy);
    }
    for (const Stream* other : before)
        if (const CUresult result = append_wait(driver, stream, other->slot, other->submitted); result != CUDA_SUCCESS)
            return result;
    return CUDA_SUCCESS;
}

CUresult submit(Driver& driver, Stream& stream, wire::Request& request) {
    if (stream.capture) return capture_work(stream, request);
    if (const CUresult result = begin_work(driver, stream); result != CUDA_SUCCESS) return result;
    return append(driver, stream, request);
}

CUresult wait_for(Driver& driver, const Context& context, std::uint32_t slot, std::uint64_t sequence) {
    wire::StreamState& state = driver.connection.page().streams[slot];
    if (!is_done(driver, slot, sequence)) {
        state.expected.store(0, std::memory_order_relaxed);
        const wire::Request watch{
            .call = wire::Call::kWatch, .context = context.slot, .stream = slot, .sequence = sequence};
        if (const CUresult result = driver.connection.post(watch); result != CUDA_SUCCESS) return result;
    }
    while (!is_done(driver, slot, sequence)) {
        const std::uint32_t seen = state.wake.load(std::memory_order_acquire);
        const Time begin = clock_now();
        for (Time now = begin;; now = clock_now()) {
            if (is_done(driver, slot, sequence)) return context_error(driver, context);
            const Time left = state.expected.load(std::memory_order_relaxed) - now;
            if (left > kSpin || (left < -kSpin && now > begin + kSpin)) break;
            ::sched_yield();  // the device may be waiting for this very processor
        }
        const timespec limit{.tv_sec = 0, .tv_nsec = kCheckLost};
        ::syscall(SYS_futex, &state.wake, FUTEX_WAIT, seen, &limit, nullptr, 0);
        if (!is_done(driver, slot, sequence) && driver.connection.lost()) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    return context_error(driver, context);
}

CUresult synchronize(Driver& driver, Context& context) {
    std::vector<std::pair<std::uint32_t, std::uint64_t>> last;
    {
        const std::lock_guard guard(driver.lock);
        for (const Stream* stream : context.streams) last.emplace_back(stream->slot, stream->submitted);
    }
    for (const auto& [slot, sequence] : last)
        if (const CUresult result = wait_for(driver, context, slot, sequence); result != CUDA_SUCCESS) return result;
    return context_error(driver, context);
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

namespace {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

}  // namespace

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    EMULATOR_ENTER_CONTEXT();
    if (!stream || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
    Stream* made = nullptr;
    const CUresult result =
        make_stream(driver, context, std::clamp(priority, kGreatestPriority, kLeastPriority), flags, made);
    if (result == CUDA_SUCCESS) *stream = reinterpret_cast<CUstream>(made);
    return result;
}

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, kLeastPriority);
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle) {
    EMULATOR_ENTER();
    auto* stream = reinterpret_cast<Stream*>(handle);
    if (!driver.streams.contains(stream)) return CUDA_ERROR_INVALID_HANDLE;
    const Context& context = *stream->context;
    const std::uint32_t slot = stream->slot;
    const std::uint64_t sequence = stream->submitted;
    guard.unlock();
    wait_for(driver, context, slot, sequence);
    guard.lock();
    return driver.streams.contains(stream) ? destroy_stream(driver, *stream) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = allow_query(driver, *stream); result != CUDA_SUCCESS) return result;
    const Context& context = *stream->context;
    const std::uint32_t slot = stream->slot;
    const std::uint64_t sequence = stream->submitted;
    guard.unlock();
    const CUresult result = wait_for(driver, context, slot, sequence);
    guard.lock();
    trim_pools(driver);
    return result;
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = allow_query(driver, *stream); result != CUDA_SUCCESS) return result;
    if (is_done(driver, stream->slot, stream->submitted)) return context_error(driver, *stream->context);
    driver.connection.post({.call = wire::Call::kWatch,
                            .context = stream->context->slot,
                            .stream = stream->slot,
                            .sequence = stream->submitted});
    return CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int* priority) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* context) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = reinterpret_cast<CUcontext>(stream->context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetDevice(CUstream handle, CUdevice* device) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = stream->context->gpu;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long* id) {
    EMULATOR_ENTER();
    const Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = stream->id;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
    EMULATOR_ENTER();
    Stream* stream = nullptr;
    if (const CUresult result = wait_for_room(driver, handle, guard, stream); result != CUDA_SUCCESS) return result;
    auto* event = reinterpret_cast<Event*>(event_handle);
    if (!driver.events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_NOT_SUPPORTED;
    if (event->capture || (stream->capture && event->recorded)) return capture_wait(*stream, *event);
    if (stream->capture || !event->recorded || is_done(driver, event->stream, event->sequence)) return CUDA_SUCCESS;
    wire::Request request{.operation = wire::Operation::kDepend};
    request.depend = {.sequence = event->sequence, .stream = event->stream};
    return submit(driver, *stream, request);
}
