#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "submit.hpp"

namespace operations {
namespace {

class Helper {
  public:
    explicit Helper(CUcontext context) : thread_([this, context] { serve(context); }) {}
    Helper(const Helper&) = delete;
    Helper& operator=(const Helper&) = delete;
    ~Helper() {
        {
            const std::lock_guard guard(lock_);
            ended_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    void run(const std::function<void()>& task) {
        std::unique_lock guard(lock_);
        task_ = &task;
        changed_.notify_all();
        changed_.wait(guard, [this] { return task_ == nullptr; });
        if (const std::exception_ptr thrown = std::exchange(thrown_, nullptr)) std::rethrow_exception(thrown);
    }

  private:
    void serve(CUcontext context) {
        cuCtxSetCurrent(context);
        std::unique_lock guard(lock_);
        for (;;) {
            changed_.wait(guard, [this] { return ended_ || task_ != nullptr; });
            if (task_ == nullptr) return;
            try {
                (*task_)();
            } catch (...) {
                thrown_ = std::current_exception();
            }
            task_ = nullptr;
            changed_.notify_all();
        }
    }

    std::mutex lock_;
    std::condition_variable changed_;
    const std::function<void()>* task_ = nullptr;
    std::exception_ptr thrown_;
    bool ended_ = false;
    std::thread thread_;
};

class Run : Submitting {
  public:
    Run(Machine& machine, const Program& program, Hooks& hooks) : Submitting(machine, program, hooks) {}

    std::string all() {
        prepare();
        hooks_.begin(static_cast<int>(program_.clients.size()));
        left_ = program_.clients.size();
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < program_.clients.size(); ++i) threads.emplace_back([this, i] { client(i); });
        {
            std::unique_lock guard(lock_);
            const auto ended = [this] { return left_ == 0; };
            if (!changed_.wait_for(guard, kSlow, ended)) {
                hooks_.slow(where());
                if (!changed_.wait_for(guard, kPatience, ended)) give_up();
            }
        }
        for (std::thread& thread : threads) thread.join();
        hooks_.end();
        if (!why_.empty()) return why_;
        try {
            finish();
        } catch (const Wrong& wrong) {
            return wrong.what();
        }
        return "";
    }

  private:
    [[noreturn]] void give_up() {
        std::fprintf(stderr, "seed %llu hangs\n%s", static_cast<unsigned long long>(program_.seed), where().c_str());
        std::_Exit(5);
    }

    std::string where() const {
        std::string all;
        for (std::size_t i = 0; i < at_.size(); ++i) {
            const std::size_t at = at_[i].load();
            const auto& actions = program_.clients[i];
            all += "  client " + std::to_string(i) + ", action " + std::to_string(at) + " of " +
                   std::to_string(actions.size()) + ": " + (at < actions.size() ? text(actions[at]) : "none") + "\n";
        }
        return all;
    }

    void prepare() {
        const std::size_t many = program_.buffers.size();
        if (many > Machine::kBuffers || program_.clients.size() > kClients) throw Wrong("more than there is room for");
        std::vector<Words> first(many);
        for (std::size_t i = 0; i < many; ++i) first[i].fill(static_cast<std::uint32_t>(i) + 1);
        MUST(cuMemcpyHtoD(machine_.device, first.data(), many * kBytes));
        std::memcpy(machine_.pinned, first.data(), many * kBytes);
        pageable_ = first;
        for (int i = 0; i < kClients; ++i) machine_.gates[i] = 0;
        for (std::size_t i = 0; i < events_.size(); ++i)
            MUST(cuEventCreate(&events_[i], program_.events[i].timing ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
        MUST(cuCtxSynchronize());
    }

    void finish() {
        MUST(cuCtxSynchronize());
        for (const CUstream stream : streams_)
            if (stream != nullptr) MUST(cuStreamDestroy(stream));
        for (const CUevent event : events_)
            if (event != nullptr) MUST(cuEventDestroy(event));
        for (const CUgraphExec exec : execs_)
            if (exec != nullptr) MUST(cuGraphExecDestroy(exec));
        std::vector<Words> device(program_.buffers.size());
        MUST(cuMemcpyDtoH(device.data(), machine_.device, device.size() * kBytes));
        std::string why;
        for (std::size_t i = 0; i < device.size(); ++i) {
            const Place place = program_.buffers[i].place;
            if (place == Place::kMade || place == Place::kMadeInOrder) {
                if (!program_.alive[i]) continue;
                MUST(cuMemcpyDtoH(device[i].data(), made_[i], kBytes));
                MUST(cuMemFree(made_[i]));
            } else if (place != Place::kDevice) {
                std::memcpy(device[i].data(), words(static_cast<int>(i)), kBytes);
            }
            if (why.empty()) why = compare(device[i].data(), program_.contents[i], static_cast<int>(i));
        }
        if (!why.empty()) throw Wrong("in the end, " + why);
    }

    static std::string compare(const std::uint32_t* found, const Words& right, int buffer) {
        for (std::uint32_t i = 0; i < kWords; ++i)
            if (found[i] != right[i])
                return "b" + std::to_string(buffer) + "[" + std::to_string(i) + "] is " + std::to_string(found[i]) +
                       " and should be " + std::to_string(right[i]);
        return "";
    }

    // --- a client
    void client(std::size_t index) {
        cuCtxSetCurrent(machine_.context);
        hooks_.client(static_cast<int>(index));
        std::unique_ptr<Helper> helper;
        const std::vector<Action>& actions = program_.clients[index];
        try {
            begin(index);
            for (std::size_t i = 0; i < actions.size(); ++i) {
                at_[index].store(i);
                if (stopped_.load()) break;
                const std::function<void()> one = [&, i] { act(index, actions[i]); };
                if (!actions[i].helper) {
                    one();
                } else {
                    if (!helper) helper = std::make_unique<Helper>(machine_.context);
                    helper->run(one);
                }
            }
            at_[index].store(actions.size());
        } catch (const Wrong& wrong) {
            const std::size_t at = at_[index].load();
            const std::string what = at < actions.size() ? text(actions[at]) : "the beginning";
            stop("client " + std::to_string(index) + ", action " + std::to_string(at) + " (" + what +
                 "): " + wrong.what());
        } catch (const Stopped&) {
        }
        helper.reset();
        closed_[index] = {};  // where it stopped while its gate was closed
        const std::lock_guard guard(lock_);
        --left_;
        changed_.notify_all();
    }

    void stop(const std::string& why) {
        const std::lock_guard guard(lock_);
        if (why_.empty()) why_ = why;
        stopped_.store(true);
        for (int i = 0; i < kClients; ++i) const_cast<volatile std::uint32_t*>(machine_.gates)[i] = 1U << 30;
    }

    void begin(std::size_t index) {
        for (std::size_t i = 0; i < program_.streams.size(); ++i) {
            const Stream& stream = program_.streams[i];
            if (stream.owner != static_cast<int>(index) || stream.kind != StreamKind::kMade) continue;
            const unsigned flags = stream.blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
            if (stream.green && machine_.green != nullptr)
                MUST(cuGreenCtxStreamCreate(&streams_[i], machine_.green, flags, stream.priority));
            else if (stream.priority == 0)
                MUST(cuStreamCreate(&streams_[i], flags));
            else
                MUST(cuStreamCreateWithPriority(&streams_[i], flags, stream.priority));
        }
    }

    // Whether NVIDIA's driver may wait until the context is idle, and keep others from calling it meanwhile.
    static bool may_wait_for_all(Do what) {
        switch (what) {
            case Do::kModuleWork:
            case Do::kCapture:
            case Do::kExecDestroy:
            case Do::kStreamDestroy:
            case Do::kAllocate:
            case Do::kFree:
            case Do::kAllocateInOrder:
            case Do::kSet:
                return true;
            default:
                return false;
        }
    }

    void act(std::size_t index, const Action& action) {
        if (machine_.apart && may_wait_for_all(action.what)) {
            const std::unique_lock all_open(closing_);
            return act_now(index, action);
        }
        if (machine_.apart && action.what == Do::kClose) closed_[index] = std::shared_lock(closing_);
        act_now(index, action);
        if (machine_.apart && action.what == Do::kOpen) closed_[index].unlock();
    }

    void act_now(std::size_t index, const Action& action) {
        const auto event = static_cast<std::size_t>(action.event);
        const auto exec = static_cast<std::size_t>(action.exec);
        const auto buffer = static_cast<std::size_t>(action.buffer);
        const Handle on = action.stream == kNone ? Handle{} : handle(action, action.stream);
        switch (action.what) {
            case Do::kWork:
                return submit(index, action.work, on, action.variant);
            case Do::kWorkAtOnce:
                return submit_at_once(action);
            case Do::kModuleWork:
                return submit_of_module(action, on);
            case Do::kRecord:
                if (on.per_thread) return MUST(cuEventRecord_ptsz(events_[event], on.stream));
                if ((action.variant & 2) != 0)
                    return MUST(cuEventRecordWithFlags(events_[event], on.stream, CU_EVENT_RECORD_DEFAULT));
                return MUST(cuEventRecord(events_[event], on.stream));
            case Do::kWait:
                if (on.per_thread) return MUST(cuStreamWaitEvent_ptsz(on.stream, events_[event], 0));
                return MUST(cuStreamWaitEvent(on.stream, events_[event], 0));
            case Do::kEventSynchronize:
                return MUST(cuEventSynchronize(events_[event]));
            case Do::kStreamSynchronize:
                if (on.per_thread) return MUST(cuStreamSynchronize_ptsz(on.stream));
                return MUST(cuStreamSynchronize(on.stream));
            case Do::kContextSynchronize: {
                const std::unique_lock guard(capturing_);
                return MUST(cuCtxSynchronize());
            }
            case Do::kEventAwait:
                return ask([&] { return cuEventQuery(events_[event]); });
            case Do::kStreamAwait:
                return ask([&] { return on.per_thread ? cuStreamQuery_ptsz(on.stream) : cuStreamQuery(on.stream); });
            case Do::kEventReady:
                return MUST(cuEventQuery(events_[event]));
            case Do::kEventPending:
                return pending(cuEventQuery(events_[event]));
            case Do::kStreamPending:
                return pending(cuStreamQuery(on.stream));
            case Do::kContextRecord: {
                const std::unique_lock guard(capturing_);
                return MUST(cuCtxRecordEvent(machine_.context, events_[event]));
            }
            case Do::kContextWait: {
                const std::unique_lock guard(capturing_);
                return MUST(cuCtxWaitEvent(machine_.context, events_[event]));
            }
            case Do::kElapsed:
                return elapsed(action);
            case Do::kEventDestroy:
                return MUST(cuEventDestroy(std::exchange(events_[event], nullptr)));
            case Do::kStreamDestroy:
                return MUST(cuStreamDestroy(std::exchange(streams_[static_cast<std::size_t>(action.stream)], nullptr)));
            case Do::kHostWrite: {
                const HostCall call = host_call(action.work);
                return multiply(const_cast<HostCall*>(&call));
            }
            case Do::kHostCheck: {
                const std::string why = compare(words(action.buffer), action.expected, action.buffer);
                if (!why.empty()) throw Wrong(why);
                return;
            }
            case Do::kCapture:
                return capture(index, action, on.stream);
            case Do::kLaunch:
                if (on.per_thread) return MUST(cuGraphLaunch_ptsz(execs_[exec], on.stream));
                return MUST(cuGraphLaunch(execs_[exec], on.stream));
            case Do::kExecDestroy:
                return MUST(cuGraphExecDestroy(std::exchange(execs_[exec], nullptr)));
            case Do::kAllocate:
                return MUST(cuMemAlloc(&made_[buffer], kBytes));
            case Do::kFree:
                return MUST(cuMemFree(made_[buffer]));
            case Do::kAllocateInOrder:
                return MUST(cuMemAllocAsync(&made_[buffer], kBytes, named(on)));
            case Do::kFreeInOrder:
                return MUST(cuMemFreeAsync(made_[buffer], named(on)));
            case Do::kSet:
                return set(action);
            case Do::kClose: {
                CUdeviceptr flag = reinterpret_cast<CUdeviceptr>(machine_.gates + index);
                std::uint32_t value = machine_.gates[index] + 1;
                if (action.variant / 4 % 2 == 0)
                    return MUST(cuStreamWaitValue32(on.stream, flag, value, CU_STREAM_WAIT_VALUE_GEQ));
                void* parameters[] = {&flag, &value};
                return MUST(cuLaunchKernel(machine_.hold, 1, 1, 1, 1, 1, 1, 0, on.stream, parameters, nullptr));
            }
            case Do::kOpen: {
                volatile std::uint32_t* gate = machine_.gates + index;
                *gate = *gate + 1;
                return;
            }
            case Do::kSend:
                return sent_[static_cast<std::size_t>(action.message)].store(true);
            case Do::kReceive:
                while (!sent_[static_cast<std::size_t>(action.message)].load()) {
                    if (stopped_.load()) throw Stopped{};
                    std::this_thread::yield();
                }
                return;
            case Do::kPause:
                return std::this_thread::sleep_for(std::chrono::microseconds(action.value));
        }
    }

    void set(const Action& action) {
        const CUstream stream = streams_[static_cast<std::size_t>(action.stream)];
        const CUstream stream2 = streams_[static_cast<std::size_t>(action.stream2)];
        switch (action.variant / 4 % 4) {
            case 0:
                return MUST(cuFuncSetCacheConfig(machine_.fill, CU_FUNC_CACHE_PREFER_NONE));
            case 1:
                return MUST(cuFuncSetAttribute(machine_.advance, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0));
            case 2: {
                std::size_t bytes = 0;
                MUST(cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
                return MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes));
            }
            default:
                return MUST(cuStreamCopyAttributes(stream, stream2));
        }
    }

    template <typename Question>
    void ask(const Question& question) {
        for (;;) {
            const CUresult result = question();
            if (result == CUDA_SUCCESS) return;
            if (result != CUDA_ERROR_NOT_READY) must(result, "query");
            if (stopped_.load()) throw Stopped{};
            std::this_thread::yield();
        }
    }

    static void pending(CUresult result) {
        if (result != CUDA_ERROR_NOT_READY) throw Wrong("is not pending: " + std::to_string(result));
    }

    void elapsed(const Action& action) {
        const auto one = static_cast<std::size_t>(action.event);
        const auto other = static_cast<std::size_t>(action.event2);
        float milliseconds = -1;
        const CUresult result = cuEventElapsedTime(&milliseconds, events_[one], events_[other]);
        const bool timed = program_.events[one].timing && program_.events[other].timing;
        if (result != (timed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE))
            throw Wrong("cuEventElapsedTime: " + std::to_string(result));
    }
};

}  // namespace

Machine::Machine(bool apart) : apart(apart) {
    const char* const name = std::getenv("KERNELS");
    std::ifstream file(name == nullptr ? "" : name);
    image.assign(std::istreambuf_iterator<char>(file), {});
    if (image.empty()) throw Wrong("KERNELS names no file");
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    CUmodule module = nullptr;
    MUST(cuModuleLoadData(&module, image.c_str()));
    MUST(cuModuleGetFunction(&advance, module, "accumulate_lcg"));
    MUST(cuModuleGetFunction(&fill, module, "fill_u32"));
    MUST(cuModuleGetFunction(&hold, module, "wait_flag_u32"));
    MUST(cuMemAlloc(&device, kBuffers * kBytes));
    make_green();
    MUST(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), kBuffers * kBytes, CU_MEMHOSTALLOC_PORTABLE));
    MUST(cuMemHostAlloc(reinterpret_cast<void**>(&gates), 4096, CU_MEMHOSTALLOC_PORTABLE));
}

// Part of the GPU, whose kernels are those of the primary context.
void Machine::make_green() {
    CUdevResource all{};
    CUdevResource part{};
    CUdevResourceDesc description = nullptr;
    unsigned groups = 1;
    if (cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) return;  // an older driver
    MUST(cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 16));
    MUST(cuDevResourceGenerateDesc(&description, &part, 1));
    MUST(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
}

std::string run(Machine& machine, const Program& program, Hooks& hooks) {
    try {
        return Run(machine, program, hooks).all();
    } catch (const Wrong& wrong) {
        return wrong.what();
    }
}

}  // namespace operations
