// Launching kernels and host functions.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <utility>

#include "driver.hpp"
#include "module.hpp"

namespace emulator::cuda {
namespace {

// The values of the parameters, packed as the kernel takes them.
CUresult pack(const Function& function, void** values, void** extra, wire::KernelLaunch& launch) {
    launch.parameter_bytes = function.parameter_bytes;
    if (function.parameter_bytes > sizeof launch.parameters) return CUDA_ERROR_NOT_SUPPORTED;
    if (values) {
        for (std::size_t i = 0; i < function.parameter_sizes.size(); ++i) {
            if (!values[i]) return CUDA_ERROR_INVALID_VALUE;
            std::memcpy(launch.parameters + function.parameter_offsets[i], values[i], function.parameter_sizes[i]);
        }
        return CUDA_SUCCESS;
    }
    if (!extra) return function.parameter_bytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    const void* buffer = nullptr;
    std::size_t bytes = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = *static_cast<const std::size_t*>(extra[1]);
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!buffer || bytes < function.parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(launch.parameters, buffer, function.parameter_bytes);
    return CUDA_SUCCESS;
}

CUresult check(const wire::KernelLaunch& launch, unsigned shared_bytes) {
    constexpr std::uint64_t kMaxThreads = 1024;
    constexpr unsigned kMaxShared = 232448;
    const auto zero = [](std::uint32_t size) { return size == 0; };
    if (std::ranges::any_of(launch.grid, zero) || std::ranges::any_of(launch.block, zero))
        return CUDA_ERROR_INVALID_VALUE;
    if (launch.grid[0] > 0x7FFFFFFF || launch.grid[1] > 65535 || launch.grid[2] > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (launch.block[0] > 1024 || launch.block[1] > 1024 || launch.block[2] > 64) return CUDA_ERROR_INVALID_VALUE;
    if (std::uint64_t{launch.block[0]} * launch.block[1] * launch.block[2] > kMaxThreads || shared_bytes > kMaxShared)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

// Keeps a stream no longer than a real channel's ring: a launch into a full one waits.
CUresult wait_for_room(Driver& driver, CUstream handle, std::unique_lock<std::mutex>& guard, Stream*& stream) {
    for (;;) {
        stream = find_stream(driver, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->submitted < wire::kStreamDepth ||
            is_done(driver, stream->slot, stream->submitted - wire::kStreamDepth + 1))
            return CUDA_SUCCESS;
        const Context& context = *stream->context;
        const std::uint32_t slot = stream->slot;
        const std::uint64_t sequence = stream->submitted - wire::kStreamDepth / 2;
        guard.unlock();
        const CUresult result = wait_for(driver, context, slot, sequence);
        guard.lock();
        if (result != CUDA_SUCCESS) return result;
    }
}

// One thread calls the host functions, each when its stream has come to it.
class HostCalls {
  public:
    struct Call {
        const Context* context;
        std::uint32_t stream;
        std::uint64_t sequence;
        CUhostFn function;
        void* argument;
    };

    void add(Driver& driver, const Call& call) {
        const std::lock_guard guard(lock_);
        calls_.push_back(call);
        if (!std::exchange(running_, true)) std::thread([this, &driver] { run(driver); }).detach();
        changed_.notify_one();
    }

  private:
    void run(Driver& driver) {
        for (;;) {
            std::unique_lock guard(lock_);
            changed_.wait(guard, [this] { return !calls_.empty(); });
            const Call call = calls_.front();
            calls_.pop_front();
            guard.unlock();
            // Not called once the context has failed, as in CUDA.
            if (wait_for(driver, *call.context, call.stream, call.sequence - 1) == CUDA_SUCCESS)
                call.function(call.argument);
            driver.connection.post({.call = wire::Call::kHostDone,
                                    .context = call.context->slot,
                                    .stream = call.stream,
                                    .sequence = call.sequence});
        }
    }

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<Call> calls_;
    bool running_ = false;
};

HostCalls& host_calls() {
    static auto* const calls = new HostCalls;  // never destroyed, as the driver
    return *calls;
}

}  // namespace
}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream_handle,
                                void** parameters, void** extra) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    const Function* function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    wire::Request request{.operation = wire::Operation::kKernel};
    request.launch = {
        .kernel = function->kernel, .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}};
    if (const CUresult result = check(request.launch, shared_bytes); result != CUDA_SUCCESS) return result;
    if (const CUresult result = pack(*function, parameters, extra, request.launch); result != CUDA_SUCCESS)
        return result;
    Stream* stream = nullptr;
    if (const CUresult result = wait_for_room(driver, stream_handle, guard, stream); result != CUDA_SUCCESS)
        return result;
    return submit(driver, *stream, request);
}

// Launch attributes ask for clusters, cooperation or priorities; only the stream's own priority is modelled.
CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; ++i)
        if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_IGNORE) return CUDA_ERROR_NOT_SUPPORTED;
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                          config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, parameters,
                          extra);
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
    EMULATOR_ENTER_CONTEXT();
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    Stream* stream = nullptr;
    if (const CUresult result = wait_for_room(driver, handle, guard, stream); result != CUDA_SUCCESS) return result;
    wire::Request request{.operation = wire::Operation::kHost};
    const CUresult result = submit(driver, *stream, request);
    if (result == CUDA_SUCCESS)
        host_calls().add(driver, {&context, stream->slot, stream->submitted, function, argument});
    return result;
}
