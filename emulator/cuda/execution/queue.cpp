#include "cuda/execution/queue.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

#include "cuda/execution/current.hpp"
#include "shared/clock.hpp"

namespace emulator::cuda {
namespace {

// A wait looks at the word itself for as long as this at its beginning and around the expected end, and sleeps while
// the end is known to be further away: so a short wait is exact, and a long one leaves the processor to others.
constexpr Time kSpin = 150'000;
constexpr Time kCheckLost = 250'000'000;

// Tells the device that somebody waits.
CUresult watch(const Driver& driver, const Context& context, Point point) {
    return driver.connection.post(
        {.call = wire::Call::kWatch, .context = context.slot, .stream = point.stream, .sequence = point.sequence});
}

// Without the lock.
CUresult wait(Driver& driver, const Context& context, Point point) {
    wire::StreamState& state = driver.connection.page().streams[point.stream];
    if (!is_done(driver, point)) {
        state.expected.store(0, std::memory_order_relaxed);
        EMULATOR_TRY(watch(driver, context, point));
    }
    while (!is_done(driver, point)) {
        const std::uint32_t seen = state.wake.load(std::memory_order_acquire);
        const Time begin = clock_now();
        for (Time now = begin;; now = clock_now()) {
            if (is_done(driver, point)) return context_error(driver, context);
            const Time left = state.expected.load(std::memory_order_relaxed) - now;
            if (left > kSpin || (left < -kSpin && now > begin + kSpin)) break;
            ::sched_yield();  // the device may be waiting for this very processor
        }
        const timespec limit{.tv_sec = 0, .tv_nsec = kCheckLost};
        const int saved = errno;  // a word that has just changed is no error
        ::syscall(SYS_futex, &state.wake, FUTEX_WAIT, seen, &limit, nullptr, 0);
        errno = saved;
        if (!is_done(driver, point) && driver.connection.lost()) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    return context_error(driver, context);
}

// One thread calls the host functions, each when its stream has come to it.
class HostCalls {
  public:
    struct Call {
        const Context* context;
        Point point;
        CUDA_HOST_NODE_PARAMS host;
        StatusFunction callback;
    };

    void add(Driver& driver, const Call& call) {
        const std::lock_guard guard(lock_);
        calls_.push_back(call);
        if (!std::exchange(running_, true)) std::thread([this, &driver] { run(driver); }).detach();
        changed_.notify_all();
    }

    // Waits until all of a context were called; not for the one that asks.
    void finish(const Context& context) {
        std::unique_lock guard(lock_);
        if (runner_ == std::this_thread::get_id()) return;
        const auto is_its = [&context](const Call& call) { return call.context == &context; };
        changed_.wait(guard, [&] { return current_ != &context && std::ranges::none_of(calls_, is_its); });
    }

  private:
    void run(Driver& driver) {
        std::unique_lock guard(lock_);
        runner_ = std::this_thread::get_id();
        for (;;) {
            current_ = nullptr;
            changed_.notify_all();
            changed_.wait(guard, [this] { return !calls_.empty(); });
            const auto [context, point, host, callback] = calls_.front();
            calls_.pop_front();
            current_ = context;
            guard.unlock();
            const CUresult status = wait(driver, *context, {point.stream, point.sequence - 1});
            if (callback != nullptr) {
                callback(host.userData, status);
            } else if (status == CUDA_SUCCESS) {  // not called once the context has failed, as in CUDA
                host.fn(host.userData);
            }
            driver.connection.post({.call = wire::Call::kHostDone,
                                    .context = context->slot,
                                    .stream = point.stream,
                                    .sequence = point.sequence});
            guard.lock();
        }
    }

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<Call> calls_;
    const Context* current_ = nullptr;  // of the one that is being called, or comes next
    std::thread::id runner_;
    bool running_ = false;
};

}  // namespace

CUresult append(Driver& driver, Stream& stream, wire::Request request) {
    request.call = wire::Call::kSubmit;
    request.context = stream.context->slot;
    request.stream = stream.slot;
    request.sequence = ++stream.submitted;
    request.arrival = clock_now();
    return driver.connection.post(request);
}

CUresult append_shared(Driver& driver, Stream& stream, wire::Call call, const Event& event) {
    wire::Request request{.call = call,
                          .context = stream.context->slot,
                          .stream = stream.slot,
                          .sequence = ++stream.submitted,
                          .arrival = clock_now()};
    request.sharing = {.key = {}, .event = event.slot};
    return driver.connection.call(request);
}

CUresult append_host(Driver& driver, Stream& stream, const CUDA_HOST_NODE_PARAMS& host, StatusFunction callback) {
    const CUresult result = append(driver, stream, {.operation = wire::Operation::kHost});
    if (result == CUDA_SUCCESS)
        kept<HostCalls>().add(driver, {&stream.context->whole(), stream.last(), host, callback});
    return result;
}

void finish_host_calls(const Context& context, std::unique_lock<std::mutex>& guard) {
    guard.unlock();
    kept<HostCalls>().finish(context);
    guard.lock();
}

CUresult append_wait(Driver& driver, Stream& stream, Point point) {
    if (is_done(driver, point)) return CUDA_SUCCESS;
    wire::Request request{.operation = wire::Operation::kDepend};
    request.depend = {.sequence = point.sequence, .stream = point.stream};
    return append(driver, stream, request);
}

CUresult record_event(Driver& driver, Stream& stream, Event& event) {
    if (event.shared) return append_shared(driver, stream, wire::Call::kRecordEvent, event);
    wire::Request request{.operation = wire::Operation::kRecord};
    request.record = {.event = event.slot};
    EMULATOR_TRY(append(driver, stream, request));
    event.capture.reset();
    event.recorded = true;
    event.point = stream.last();
    return CUDA_SUCCESS;
}

CUresult await_event(Driver& driver, Stream& stream, const Event& event) {
    if (event.shared) return append_shared(driver, stream, wire::Call::kAwaitEvent, event);
    return event.recorded ? append_wait(driver, stream, event.point) : CUDA_SUCCESS;
}

bool is_done(const Driver& driver, Point point) {
    const wire::StreamState& state = driver.connection.page().streams[point.stream];
    return state.completed.load(std::memory_order_acquire) >= point.sequence;
}

CUresult wait_for(Driver& driver, const Context& context, Point point, std::unique_lock<std::mutex>& guard) {
    guard.unlock();
    const CUresult result = wait(driver, context, point);
    guard.lock();
    return result;
}

std::vector<Stream*> streams_of(const Context& context) {
    std::vector<Stream*> found;
    for (Stream* stream : objects().streams)
        if (stream->context == &context || &stream->context->whole() == &context) found.push_back(stream);
    return found;
}

CUresult wait_for_all(Driver& driver, const Context& context, std::unique_lock<std::mutex>& guard) {
    std::vector<Point> last;
    for (const Stream* stream : streams_of(context)) last.push_back(stream->last());
    for (const Point point : last) EMULATOR_TRY(wait_for(driver, context, point, guard));
    return context_error(driver, context);
}

CUresult synchronize(Driver& driver, const Context& context, Point point, std::unique_lock<std::mutex>& guard) {
    const CUresult result = wait_for(driver, context, point, guard);
    driver.on_synchronized();
    return result;
}

CUresult query(Driver& driver, const Context& context, Point point) {
    if (is_done(driver, point)) return context_error(driver, context);
    watch(driver, context, point);
    return CUDA_ERROR_NOT_READY;
}

}  // namespace emulator::cuda
