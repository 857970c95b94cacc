// A GPU in simulated time, behind the few CUDA calls that the cap uses: calls take the host time, work takes the GPU
// time, and sleeping costs nothing but the number of it.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "cap/calls.hpp"
#include "core/guest.hpp"

namespace simulated {

using Nanoseconds = std::int64_t;

inline constexpr Nanoseconds kMicrosecond = 1'000;
inline constexpr Nanoseconds kMillisecond = 1'000'000;
inline constexpr Nanoseconds kSecond = 1'000'000'000;

// What things take, about as on an H200 with driver 580.
inline constexpr Nanoseconds kLaunch = 2'800;
inline constexpr Nanoseconds kRecord = 1'200;
inline constexpr Nanoseconds kQuery = 300;
inline constexpr Nanoseconds kDoorbell = 1'000;   // until the GPU sees what the host queued
inline constexpr Nanoseconds kBetweenWork = 700;  // from the end of one kernel to the beginning of the next
inline constexpr Nanoseconds kTimestamp = 900;    // for an event
inline constexpr Nanoseconds kLateWake = 55'000;  // a sleep that is over
inline constexpr std::size_t kQueue = 1024;       // launches that a stream takes before the host waits

struct Stream {
    Nanoseconds idle_from = 0;
    std::deque<Nanoseconds> ends;
    bool capturing = false;
};

struct Event {
    Nanoseconds at = 0;
    CUcontext context = nullptr;
};

struct Span {
    Nanoseconds begin;
    Nanoseconds end;
};

class Gpu {
  public:
    Nanoseconds now = kSecond;
    bool in_real_time = false;   // the host's time is the real one, and threads may call
    bool one_at_a_time = false;  // streams share one engine instead of running beside each other
    CUcontext current = reinterpret_cast<CUcontext>(0x100);
    unsigned long long current_id = 1;
    CUresult failure = CUDA_SUCCESS;  // what every event call answers
    int strange = 0;                  // calls that would be errors of the cap's: dead handles, or on a capturing stream
    int events_made = 0;
    std::vector<Span> work;

    Stream& stream(CUstream handle) { return streams_[handle == nullptr ? CU_STREAM_LEGACY : handle]; }

    void launch(CUstream handle, Nanoseconds length, Nanoseconds host = kLaunch) {
        Stream& one = stream(handle);
        now += host;
        if (one.capturing) return;
        while (!one.ends.empty() && one.ends.front() <= now) one.ends.pop_front();
        if (one.ends.size() >= kQueue) {
            now = one.ends.front();
            one.ends.pop_front();
        }
        Nanoseconds begin = std::max(one.idle_from, now + kDoorbell) + kBetweenWork;
        if (one_at_a_time) begin = std::max(begin, engine_idle_from_);
        one.idle_from = engine_idle_from_ = begin + length;
        one.ends.push_back(one.idle_from);
        work.push_back({begin, one.idle_from});
    }

    void synchronize(CUstream handle) { now = std::max(now, stream(handle).idle_from) + 5 * kMicrosecond; }

    // GPU time in this window, ns: the union over streams.
    Nanoseconds busy(Nanoseconds from, Nanoseconds until) const {
        std::vector<Span> spans = work;
        std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
        Nanoseconds sum = 0;
        for (const Span& span : spans) {
            const Nanoseconds begin = std::max(from, span.begin);
            const Nanoseconds end = std::min(until, span.end);
            if (begin >= end) continue;
            sum += end - begin;
            from = end;
        }
        return sum;
    }

    CUresult create(CUevent* event) {
        if (failure != CUDA_SUCCESS) return failure;
        ++events_made;
        events_.push_back(std::make_unique<Event>(Event{.context = current}));
        alive_.insert(events_.back().get());
        *event = reinterpret_cast<CUevent>(events_.back().get());
        return CUDA_SUCCESS;
    }

    CUresult record(CUevent handle, CUstream in) {
        now += kRecord;
        Event* event = known(handle);
        Stream& one = stream(in);
        if (one.capturing) ++strange;
        if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (failure != CUDA_SUCCESS) return failure;
        event->at = one.idle_from = std::max(one.idle_from, now + kDoorbell) + kTimestamp;
        return CUDA_SUCCESS;
    }

    CUresult query(CUevent handle) {
        now += kQuery;
        const Event* event = known(handle);
        if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (failure != CUDA_SUCCESS) return failure;
        return event->at <= now ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    }

    CUresult query_stream(CUstream handle) {
        now += kQuery;
        if (stream(handle).capturing) ++strange;
        return stream(handle).idle_from <= now ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    }

    CUresult elapsed(float* milliseconds, CUevent from, CUevent to) {
        const Event* first = known(from);
        const Event* last = known(to);
        if (first == nullptr || last == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        *milliseconds = static_cast<float>(static_cast<double>(last->at - first->at) / 1e6);
        return CUDA_SUCCESS;
    }

    // The context and its events go; a new one has the same handle.
    void replace_context() {
        alive_.clear();
        ++current_id;
    }

  private:
    Event* known(CUevent handle) {
        auto* event = reinterpret_cast<Event*>(handle);
        if (alive_.contains(event)) return event;
        ++strange;
        return nullptr;
    }

    std::map<CUstream, Stream> streams_;
    std::vector<std::unique_ptr<Event>> events_;
    std::set<Event*> alive_;
    Nanoseconds engine_idle_from_ = 0;
};

inline Gpu gpu;
inline std::mutex gpu_lock;

// The GPU, for one call.
struct Access {
    Access() : guard(gpu_lock) {
        if (gpu.in_real_time) gpu.now = runlist::monotonic_ns();
    }
    Gpu* operator->() const { return &gpu; }
    std::lock_guard<std::mutex> guard;
};

// For how long the next question for an event goes unanswered, in real time: whoever asks stays in the driver.
inline std::atomic<Nanoseconds> stall{};

inline void answer_late() {
    if (const Nanoseconds length = stall.exchange(0)) runlist::pause_ns(length);
}

inline runlist::cap::Calls calls() {
    return {
        .cuCtxGetCurrent = [](CUcontext* context) { return *context = gpu.current, CUDA_SUCCESS; },
        .cuCtxPushCurrent = [](CUcontext) { return CUDA_SUCCESS; },
        .cuCtxPopCurrent = [](CUcontext*) { return CUDA_SUCCESS; },
        .cuCtxGetDevice = [](CUdevice* device) { return *device = 0, CUDA_SUCCESS; },
        .cuDeviceGetUuid = [](CUuuid* uuid, CUdevice) { return *uuid = {}, CUDA_SUCCESS; },
        .cuEventCreate = [](CUevent* event, unsigned) { return Access()->create(event); },
        .cuEventRecord = [](CUevent event, CUstream stream) { return Access()->record(event, stream); },
        .cuEventQuery = [](CUevent event) { return answer_late(), Access()->query(event); },
        .cuEventElapsedTime = [](float* ms, CUevent from, CUevent to) { return Access()->elapsed(ms, from, to); },
        .cuStreamQuery = [](CUstream stream) { return Access()->query_stream(stream); },
        .cuStreamIsCapturing =
            [](CUstream stream, CUstreamCaptureStatus* status) {
                const bool is_capturing = Access()->stream(stream).capturing;
                *status = is_capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
                return CUDA_SUCCESS;
            },
        .cuThreadExchangeStreamCaptureMode = nullptr,
        .cuStreamGetCtx = [](CUstream, CUcontext* context) { return *context = gpu.current, CUDA_SUCCESS; },
        .cuCtxGetId = [](CUcontext, unsigned long long* id) { return *id = gpu.current_id, CUDA_SUCCESS; },
        .cuDevicePrimaryCtxGetState = nullptr,
        .cuStreamCreate = nullptr,
        .cuMemAlloc_v2 = nullptr,
        .cuMemsetD8Async = nullptr,
        .cuLaunchHostFunc = nullptr,
    };
}

}  // namespace simulated
