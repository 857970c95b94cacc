// The work of a program as calls of the driver.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "run.hpp"

// The forms whose stream 0 is the thread's own.
extern "C" {
decltype(cuLaunchKernel) cuLaunchKernel_ptsz;
decltype(cuMemcpyAsync) cuMemcpyAsync_ptsz;
decltype(cuMemsetD32Async) cuMemsetD32Async_ptsz;
decltype(cuEventRecord) cuEventRecord_ptsz;
decltype(cuStreamSynchronize) cuStreamSynchronize_ptsz;
decltype(cuStreamQuery) cuStreamQuery_ptsz;
decltype(cuStreamWaitEvent) cuStreamWaitEvent_ptsz;
decltype(cuGraphLaunch) cuGraphLaunch_ptsz;
}

namespace operations {

inline constexpr int kClients = 16;
inline constexpr std::size_t kBytes = sizeof(Words);
inline constexpr std::uint32_t kPlain = 14;  // the variant of the plainest calls
inline constexpr auto kSlow = std::chrono::seconds(3);
inline constexpr auto kPatience = std::chrono::seconds(20);

struct Wrong : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Stopped {};  // another thread has found something wrong

inline void must(CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) throw Wrong(std::string(call) + ": " + std::to_string(result));
}
#define MUST(call) must(call, #call)

// What a function of the host gets.
struct HostCall {
    std::uint32_t* to;
    const std::uint32_t* from;
    std::uint32_t count;
    std::uint32_t value;
};

inline void CUDA_CB multiply(void* argument) {
    const auto* call = static_cast<const HostCall*>(argument);
    const std::vector<std::uint32_t> from(call->from, call->from + call->count);  // they may overlap
    for (std::uint32_t i = 0; i < call->count; ++i) call->to[i] = call->to[i] * call->value + from[i];
}

// A client's other thread, which is no client's: does one thing at a time while the client waits.
class Submitting {
  protected:
    Submitting(Machine& machine, const Program& program, Hooks& hooks)
        : machine_(machine),
          program_(program),
          hooks_(hooks),
          streams_(program.streams.size()),
          events_(program.events.size()),
          made_(program.buffers.size()),
          pageable_(program.buffers.size()),
          execs_(static_cast<std::size_t>(program.execs)),
          sent_(static_cast<std::size_t>(program.messages)),
          at_(program.clients.size()),
          closed_(program.clients.size()) {}

    CUdeviceptr address(int index) const {
        const auto place = static_cast<std::size_t>(index);
        switch (program_.buffers[place].place) {
            case Place::kDevice:
                return machine_.device + place * kBytes;
            case Place::kPinned:
                return reinterpret_cast<CUdeviceptr>(machine_.pinned + place * kWords);
            case Place::kPageable:
                return reinterpret_cast<CUdeviceptr>(pageable_[place].data());
            default:
                return made_[place];
        }
    }
    std::uint32_t* words(int index) const { return reinterpret_cast<std::uint32_t*>(address(index)); }
    bool on_host(int index) const {
        const Place place = program_.buffers[static_cast<std::size_t>(index)].place;
        return place == Place::kPinned || place == Place::kPageable;
    }

    // The stream as a call names it, and whether by a form whose stream 0 is the thread's own.
    struct Handle {
        CUstream stream;
        bool per_thread;
    };
    Handle handle(const Action& action, int slot) const {
        const auto index = static_cast<std::size_t>(slot);
        const bool one = (action.variant & 1) != 0;
        switch (program_.streams[index].kind) {
            case StreamKind::kLegacy:
                return {one ? CU_STREAM_LEGACY : nullptr, false};
            case StreamKind::kPerThread:
                return {one ? CU_STREAM_PER_THREAD : nullptr, !one};
            default:
                return {streams_[index], false};
        }
    }

    static CUstream named(Handle on) { return on.per_thread ? CU_STREAM_PER_THREAD : on.stream; }

    // --- work
    HostCall host_call(const Work& work) const {
        return {words(work.to) + work.to_at, words(work.from) + work.from_at, work.count, work.value};
    }

    HostCall* kept_host_call(std::size_t index, const Work& work) {
        const std::lock_guard guard(lock_);
        host_calls_.push_back(std::make_unique<HostCall>(host_call(work)));
        static_cast<void>(index);
        return host_calls_.back().get();
    }

    // All that a call is given is gone when it has returned.
    static void launch(CUfunction function, CUdeviceptr to, std::uint64_t count, std::uint32_t value, bool advances,
                       Handle on, std::uint32_t variant) {
        constexpr unsigned kBlock = 64;
        const auto grid = static_cast<unsigned>((count + kBlock - 1) / kBlock);
        // advance: to, count, value. fill: to, value, count.
        struct {
            CUdeviceptr to;
            std::uint64_t second;
            std::uint64_t third;
        } packed{to, advances ? count : value, advances ? value : count};
        void* parameters[] = {&packed.to, &packed.second, &packed.third};
        std::size_t bytes = advances ? 20 : 24;
        void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                         CU_LAUNCH_PARAM_END};
        CUresult result = CUDA_SUCCESS;
        if (on.per_thread) {
            result = cuLaunchKernel_ptsz(function, grid, 1, 1, kBlock, 1, 1, 0, on.stream, parameters, nullptr);
        } else if (variant / 4 % 4 == 0) {
            result = cuLaunchKernel(function, grid, 1, 1, kBlock, 1, 1, 0, on.stream, nullptr, extra);
        } else if (variant / 4 % 4 == 1) {
            CUlaunchConfig config{};
            config.gridDimX = grid;
            config.gridDimY = config.gridDimZ = 1;
            config.blockDimX = kBlock;
            config.blockDimY = config.blockDimZ = 1;
            config.hStream = on.stream;
            CUlaunchAttribute attribute{};
            switch (variant / 64 % 4) {
                case 0:
                    attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
                    attribute.value.priority = -1;
                    break;
                case 1:
                    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
                    attribute.value.clusterDim = {1, 1, 1};
                    break;
                case 2:
                    attribute.id = CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
                    attribute.value.sharedMemCarveout = 50;
                    break;
                default:
                    attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
                    attribute.value.cooperative = 1;
            }
            config.attrs = variant / 16 % 2 == 0 ? &attribute : nullptr;
            config.numAttrs = config.attrs == nullptr ? 0 : 1;
            result = cuLaunchKernelEx(&config, function, parameters, nullptr);
            std::memset(static_cast<void*>(&attribute), 0xEE, sizeof attribute);
            std::memset(static_cast<void*>(&config), 0xEE, sizeof config);
        } else if (variant / 4 % 4 == 2 && variant / 16 % 4 == 0) {
            result = cuLaunchCooperativeKernel(function, grid, 1, 1, kBlock, 1, 1, 0, on.stream, parameters);
        } else {
            result = cuLaunchKernel(function, grid, 1, 1, kBlock, 1, 1, 0, on.stream, parameters, nullptr);
        }
        std::memset(static_cast<void*>(&packed), 0xEE, sizeof packed);
        std::memset(static_cast<void*>(parameters), 0xEE, sizeof parameters);
        std::memset(static_cast<void*>(extra), 0xEE, sizeof extra);
        bytes = 0;
        must(result, "launch");
    }

    void submit(std::size_t index, const Work& work, Handle on, std::uint32_t variant) {
        const CUdeviceptr to = address(work.to) + work.to_at * 4;
        const std::size_t bytes = work.count * 4;
        switch (work.kind) {
            case Kind::kAdvance:
                return launch(machine_.advance, to, work.count, work.value, true, on, variant);
            case Kind::kFillKernel:
                return launch(machine_.fill, to, work.count, work.value, false, on, variant);
            case Kind::kSet: {
                const auto half = static_cast<unsigned short>(work.value);
                const auto byte = static_cast<unsigned char>(work.value);
                if (work.width == 4 && work.count == 1 && !on.per_thread && variant / 4 % 2 == 0)
                    return MUST(cuStreamWriteValue32(on.stream, to, work.value, CU_STREAM_WRITE_VALUE_DEFAULT));
                if (work.width == 4 && on.per_thread)
                    return MUST(cuMemsetD32Async_ptsz(to, work.value, work.count, on.stream));
                if (work.width == 4) return MUST(cuMemsetD32Async(to, work.value, work.count, named(on)));
                if (work.width == 2) return MUST(cuMemsetD16Async(to, half, bytes / 2, named(on)));
                return MUST(cuMemsetD8Async(to, byte, bytes, named(on)));
            }
            case Kind::kCopy:
                return submit_copy(work, on, variant);
            case Kind::kHost:
                return MUST(cuLaunchHostFunc(named(on), multiply, kept_host_call(index, work)));
        }
    }

    void submit_copy(const Work& work, Handle on, std::uint32_t variant) {
        const CUdeviceptr to = address(work.to) + work.to_at * 4;
        const CUdeviceptr from = address(work.from) + work.from_at * 4;
        const std::size_t bytes = work.count * 4;
        const bool pageable = program_.buffers[static_cast<std::size_t>(work.from)].place == Place::kPageable;
        if (pageable) {  // may be overwritten as soon as the call has returned
            std::vector<std::uint32_t> source(words(work.from) + work.from_at,
                                              words(work.from) + work.from_at + work.count);
            const CUresult result = cuMemcpyHtoDAsync(to, source.data(), bytes, named(on));
            std::ranges::fill(source, 0xEEEEEEEE);
            return must(result, "cuMemcpyHtoDAsync");
        }
        if (on.per_thread) return MUST(cuMemcpyAsync_ptsz(to, from, bytes, on.stream));
        if (variant / 4 % 3 == 0) return MUST(cuMemcpyAsync(to, from, bytes, on.stream));
        if (variant / 4 % 3 == 1) {
            CUDA_MEMCPY2D copy{};  // one row, or one word in each of several
            const bool column = variant / 16 % 2 == 0;
            copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
            copy.srcDevice = from;
            copy.dstDevice = to;
            copy.srcPitch = copy.dstPitch = column ? 4 : bytes;
            copy.WidthInBytes = column ? 4 : bytes;
            copy.Height = column ? work.count : 1;
            const CUresult result = cuMemcpy2DAsync(&copy, on.stream);
            std::memset(&copy, 0xEE, sizeof copy);
            return must(result, "cuMemcpy2DAsync");
        }
        if (on_host(work.to)) return MUST(cuMemcpyDtoHAsync(reinterpret_cast<void*>(to), from, bytes, on.stream));
        if (on_host(work.from)) return MUST(cuMemcpyHtoDAsync(to, reinterpret_cast<void*>(from), bytes, on.stream));
        return MUST(cuMemcpyDtoDAsync(to, from, bytes, on.stream));
    }

    void submit_at_once(const Action& action) const {
        const Work& work = action.work;
        const CUdeviceptr to = address(work.to) + work.to_at * 4;
        const std::size_t bytes = work.count * 4;
        if (work.kind == Kind::kSet) {
            if (work.width == 4) return MUST(cuMemsetD32(to, work.value, work.count));
            if (work.width == 2) return MUST(cuMemsetD16(to, static_cast<unsigned short>(work.value), bytes / 2));
            return MUST(cuMemsetD8(to, static_cast<unsigned char>(work.value), bytes));
        }
        const CUdeviceptr from = address(work.from) + work.from_at * 4;
        if (action.variant / 4 % 2 == 0) return MUST(cuMemcpy(to, from, bytes));
        if (on_host(work.to)) return MUST(cuMemcpyDtoH(reinterpret_cast<void*>(to), from, bytes));
        if (on_host(work.from)) return MUST(cuMemcpyHtoD(to, reinterpret_cast<void*>(from), bytes));
        return MUST(cuMemcpyDtoD(to, from, bytes));
    }

    void submit_of_module(const Action& action, Handle on) const {
        CUmodule module = nullptr;
        CUfunction function = nullptr;
        MUST(cuModuleLoadData(&module, machine_.image.c_str()));
        MUST(cuModuleGetFunction(&function, module, "fill_u32"));
        const Work& work = action.work;
        launch(function, address(work.to) + work.to_at * 4, work.count, work.value, false, on, action.variant);
        MUST(cuModuleUnload(module));
    }

    void capture(std::size_t index, const Action& action, CUstream stream) {
        CUgraph graph = nullptr;
        {
            const std::shared_lock guard(capturing_);
            const bool relaxed = (action.variant & 2) != 0;
            MUST(cuStreamBeginCapture(stream,
                                      relaxed ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
            if (action.event2 != kNone)
                MUST(cuStreamWaitEvent(stream, events_[static_cast<std::size_t>(action.event2)],
                                       CU_EVENT_WAIT_EXTERNAL));
            CUevent fork = nullptr;
            CUevent join = nullptr;
            if (action.stream2 != kNone) {
                const CUstream other = streams_[static_cast<std::size_t>(action.stream2)];
                MUST(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
                MUST(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
                MUST(cuEventRecord(fork, stream));
                MUST(cuStreamWaitEvent(other, fork, 0));
                for (const Work& work : action.works2) submit(index, work, {other, false}, kPlain);
                MUST(cuEventRecord(join, other));
            }
            for (const Work& work : action.works) submit(index, work, {stream, false}, kPlain);
            if (join != nullptr) MUST(cuStreamWaitEvent(stream, join, 0));
            if (action.event != kNone)
                MUST(cuEventRecordWithFlags(events_[static_cast<std::size_t>(action.event)], stream,
                                            CU_EVENT_RECORD_EXTERNAL));
            MUST(cuStreamEndCapture(stream, &graph));
            if (fork != nullptr) MUST(cuEventDestroy(fork));
            if (join != nullptr) MUST(cuEventDestroy(join));
        }
        CUgraphExec& exec = execs_[static_cast<std::size_t>(action.exec)];
        if (action.update) {
            CUgraphExecUpdateResultInfo info{};
            const CUresult result = cuGraphExecUpdate(exec, graph, &info);
            if (result != CUDA_SUCCESS)
                throw Wrong("cuGraphExecUpdate: " + std::to_string(result) + ", " + std::to_string(info.result));
        } else {
            MUST(cuGraphInstantiate(&exec, graph, 0));
        }
        MUST(cuGraphDestroy(graph));
    }

    Machine& machine_;
    const Program& program_;
    Hooks& hooks_;
    std::vector<CUstream> streams_;
    std::vector<CUevent> events_;
    std::vector<CUdeviceptr> made_;
    mutable std::vector<Words> pageable_;
    std::vector<CUgraphExec> execs_;
    std::vector<std::atomic<bool>> sent_;
    std::vector<std::atomic<std::size_t>> at_;  // which action each client is at
    std::shared_mutex closing_;                 // for each client while its gate is closed
    std::vector<std::shared_lock<std::shared_mutex>> closed_;
    std::vector<std::unique_ptr<HostCall>> host_calls_;
    std::shared_mutex capturing_;  // nobody may wait for a context in which something is captured
    std::mutex lock_;
    std::condition_variable changed_;
    std::size_t left_ = 0;
    std::string why_;
    std::atomic<bool> stopped_{false};
};

}  // namespace operations
