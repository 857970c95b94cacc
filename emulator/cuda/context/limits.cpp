// Names and limits of contexts.
#include <algorithm>
#include <iterator>
#include <utility>

#include "cuda/execution/current.hpp"

using namespace emulator;
using namespace emulator::cuda;

namespace {

constexpr std::size_t kMaxStack = 512 << 10;  // bytes a thread

// What a new context on an H200 has. None of it changes what the emulated kernels do.
constexpr std::pair<CUlimit, std::size_t> kDefaults[] = {
    {CU_LIMIT_STACK_SIZE, 1024},
    {CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20},
    {CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20},
    {CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2},
    {CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048},
    {CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64},
    {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0},
};

// nullptr for a limit that there is not.
const std::pair<CUlimit, std::size_t>* find_default(CUlimit limit) {
    const auto* found = std::ranges::find(kDefaults, limit, &std::pair<CUlimit, std::size_t>::first);
    return found == std::end(kDefaults) ? nullptr : found;
}

}  // namespace

CUresult CUDAAPI cuCtxGetLimit(std::size_t* value, CUlimit limit) {
    EMULATOR_ENTER_CONTEXT();
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    const auto* standard = find_default(limit);
    if (!standard) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    const auto set = context.limits.find(limit);
    *value = set != context.limits.end() ? set->second : standard->second;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, std::size_t value) {
    EMULATOR_ENTER_CONTEXT();
    if (!find_default(limit)) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (limit == CU_LIMIT_STACK_SIZE && value > kMaxStack) return CUDA_ERROR_INVALID_VALUE;
    context.limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long* id) {
    EMULATOR_ENTER();
    const Context* context = handle ? named(objects().contexts, handle) : current_context();
    if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}
