#include "cuda/kernel/launch.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>

#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/stream.hpp"
#include "cuda/kernel/module.hpp"
#include "model/timing.hpp"
#include "shared/kernels.hpp"

namespace emulator::cuda {
namespace {

constexpr std::size_t kSharedPerProcessor = 233472;  // bytes
constexpr std::size_t kSharedReserved = 1024;        // bytes a block

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
    if (bytes > function.parameter_bytes) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;  // too many arguments
    std::memcpy(launch.parameters, buffer, function.parameter_bytes);
    return CUDA_SUCCESS;
}

CUresult check(const Shape& shape) {
    constexpr std::uint64_t kMaxThreads = 1024;
    const auto zero = [](unsigned size) { return size == 0; };
    if (std::ranges::any_of(shape.grid, zero) || std::ranges::any_of(shape.block, zero))
        return CUDA_ERROR_INVALID_VALUE;
    if (shape.grid[0] > 0x7FFFFFFF || shape.grid[1] > 65535 || shape.grid[2] > 65535) return CUDA_ERROR_INVALID_VALUE;
    if (shape.block[0] > 1024 || shape.block[1] > 1024 || shape.block[2] > 64) return CUDA_ERROR_INVALID_VALUE;
    if (std::uint64_t{shape.block[0]} * shape.block[1] * shape.block[2] > kMaxThreads ||
        shape.shared_bytes > kMaxShared)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

// Blocks that fit on a processor together.
CUresult active_blocks(int threads, std::size_t shared_bytes, int& blocks) {
    if (threads <= 0) return CUDA_ERROR_INVALID_VALUE;
    blocks = 0;
    if (threads > 1024 || shared_bytes > kMaxShared) return CUDA_SUCCESS;
    const std::uint32_t warps = (static_cast<std::uint32_t>(threads) + timing::kWarp - 1) / timing::kWarp;
    const std::size_t by_shared = kSharedPerProcessor / (shared_bytes + kSharedReserved);
    blocks = static_cast<int>(
        std::min<std::size_t>({timing::kWarpsPerProcessor / warps, timing::kBlocksPerProcessor, by_shared}));
    return CUDA_SUCCESS;
}

// Blocks that wait for each other have to be there together.
CUresult check_cooperative(const Shape& shape) {
    const unsigned threads = shape.block[0] * shape.block[1] * shape.block[2];
    int fit = 0;
    EMULATOR_TRY(active_blocks(static_cast<int>(threads), shape.shared_bytes, fit));
    const std::uint64_t blocks = std::uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
    const std::uint64_t room = std::uint64_t{timing::kProcessors} * static_cast<unsigned>(fit);
    return blocks <= room ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

CUresult launch(CUfunction function, const Shape& shape, bool cooperative, CUstream handle, void** parameters,
                void** extra) {
    EMULATOR_ENTER_CONTEXT();
    Task task{.type = CU_GRAPH_NODE_TYPE_KERNEL};
    EMULATOR_TRY(make_launch(function, shape, parameters, extra, task));
    if (cooperative) EMULATOR_TRY(check_cooperative(shape));
    Stream* stream = nullptr;
    EMULATOR_TRY(wait_for_room(driver, handle, guard, stream));
    return submit(driver, *stream, std::move(task));
}

}  // namespace

CUresult make_launch(CUfunction handle, const Shape& shape, void** values, void** extra, Task& made) {
    const Function* function = find_function(handle);
    if (!function) return no_such_handle();
    EMULATOR_TRY(check(shape));
    if (shape.shared_bytes > function->shared_bytes) return CUDA_ERROR_INVALID_VALUE;
    wire::Request request{.operation = wire::Operation::kKernel};
    request.launch = {.kernel = function->kernel};
    std::ranges::copy(shape.grid, request.launch.grid);
    std::ranges::copy(shape.block, request.launch.block);
    EMULATOR_TRY(pack(*function, values, extra, request.launch));
    made.work = {request};
    made.function = handle;
    made.shared_bytes = shape.shared_bytes;
    return CUDA_SUCCESS;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                CUstream stream, void** parameters, void** extra) {
    const Shape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    return launch(function, shape, false, stream, parameters, extra);
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                           CUstream stream, void** parameters) {
    const Shape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
    return launch(function, shape, true, stream, parameters, nullptr);
}

// Attributes that change what a program sees are kept or refused; those about speed and placement change nothing here.
CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
    if (!config || (config->numAttrs > 0 && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
    const Shape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                      {config->blockDimX, config->blockDimY, config->blockDimZ},
                      config->sharedMemBytes};
    bool cooperative = false;
    CUevent event = nullptr;
    for (const CUlaunchAttribute& attribute : std::span(config->attrs, config->numAttrs)) {
        switch (attribute.id) {
            case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
                cooperative = attribute.value.cooperative != 0;
                break;
            case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
                const auto& cluster = attribute.value.clusterDim;
                if (cluster.x == 0 || cluster.y == 0 || cluster.z == 0 || shape.grid[0] % cluster.x != 0 ||
                    shape.grid[1] % cluster.y != 0 || shape.grid[2] % cluster.z != 0)
                    return CUDA_ERROR_INVALID_VALUE;
                break;
            }
            case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
                event = attribute.value.programmaticEvent.event;
                break;
            case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
                event = attribute.value.launchCompletionEvent.event;
                break;
            default:
                break;
        }
    }
    const CUresult result = launch(function, shape, cooperative, config->hStream, parameters, extra);
    // Later than it may be: behind the kernel.
    return result == CUDA_SUCCESS && event ? cuEventRecord(event, config->hStream) : result;
}

// Waiting is a kernel that ends when a word is as large, as programs have one.
CUresult CUDAAPI cuStreamWaitValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_NOT_SUPPORTED;
    Stream* stream = nullptr;
    EMULATOR_TRY(wait_for_room(driver, handle, guard, stream));
    wire::Request request{.operation = wire::Operation::kKernel};
    request.launch = {.kernel = static_cast<std::uint32_t>(Kernel::kWaitFlagU32),
                      .grid = {1, 1, 1},
                      .block = {1, 1, 1},
                      .parameter_bytes = sizeof address + sizeof value};
    std::memcpy(request.launch.parameters, &address, sizeof address);
    std::memcpy(request.launch.parameters + sizeof address, &value, sizeof value);
    return submit(driver, *stream, {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .work = {request}});
}

CUresult CUDAAPI cuStreamWriteValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned) {
    EMULATOR_ENTER_CONTEXT();
    Stream* stream = nullptr;
    EMULATOR_TRY(wait_for_room(driver, handle, guard, stream));
    wire::Request request{.operation = wire::Operation::kFill};
    request.fill = {.destination = address, .count = 1, .value = value, .width = 4};
    return submit(driver, *stream, {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .work = {request}});
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
    EMULATOR_ENTER_CONTEXT();
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    Stream* stream = nullptr;
    EMULATOR_TRY(wait_for_room(driver, handle, guard, stream));
    return submit(driver, *stream, {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {function, argument}});
}

// The older form, which no graph can keep.
CUresult CUDAAPI cuStreamAddCallback(CUstream handle, CUstreamCallback function, void* argument, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    if (!function || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    Stream* stream = nullptr;
    EMULATOR_TRY(wait_for_room(driver, handle, guard, stream));
    EMULATOR_TRY(allow_query(*stream));
    struct Callback {
        CUstream stream;
        CUstreamCallback function;
        void* argument;
    };
    const StatusFunction call = [](void* data, CUresult status) {
        const std::unique_ptr<Callback> one(static_cast<Callback*>(data));
        one->function(one->stream, status, one->argument);
    };
    auto one = std::make_unique<Callback>(handle, function, argument);
    EMULATOR_TRY(
        submit(driver, *stream, {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {nullptr, one.get()}, .callback = call}));
    static_cast<void>(one.release());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                             std::size_t shared_bytes) {
    EMULATOR_ENTER();
    if (!find_function(function)) return no_such_handle();
    return blocks ? active_blocks(threads, shared_bytes, *blocks) : CUDA_ERROR_INVALID_VALUE;
}
