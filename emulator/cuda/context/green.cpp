// Green contexts: parts of a primary context with streams of their own.
#include <algorithm>

#include "cuda/context/context.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/execution/stream.hpp"
#include "model/timing.hpp"

namespace emulator::cuda {
namespace {

constexpr unsigned kSmallest = 8;  // processors, of which a part has a multiple

struct ResourceDescription {
    unsigned processors;
};

std::set<ResourceDescription*>& descriptions() { return kept<std::set<ResourceDescription*>>(); }

// Its handle is that of the part of the primary context that it stands for, which programs make current.
Context* from(CUgreenCtx handle) {
    Context* green = named(objects().contexts, handle);
    return green && green->base ? green : nullptr;
}

CUdevResource resource_of(unsigned processors) {
    CUdevResource made{};
    made.type = CU_DEV_RESOURCE_TYPE_SM;
    made.sm.smCount = processors;
    made.sm.minSmPartitionSize = kSmallest;
    made.sm.smCoscheduledAlignment = kSmallest;
    return made;
}

CUresult answer(CUdevResource* resource, CUdevResourceType type, unsigned processors) {
    if (!resource) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = resource_of(processors);
    return CUDA_SUCCESS;
}

}  // namespace

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
    EMULATOR_ENTER();
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    return answer(resource, type, timing::kProcessors);
}

CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource, CUdevResourceType type) {
    EMULATOR_ENTER();
    Context* green = from(handle);
    return green ? answer(resource, type, green->processors) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuCtxGetDevResource(CUcontext handle, CUdevResource* resource, CUdevResourceType type) {
    EMULATOR_ENTER();
    Context* context = handle ? named(objects().contexts, handle) : current_place();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    return answer(resource, type, context->base ? context->processors : unsigned{timing::kProcessors});
}

CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource* made, unsigned* count, const CUdevResource* input,
                                             CUdevResource* rest, unsigned, unsigned least) {
    if (!count || !input) return CUDA_ERROR_INVALID_VALUE;
    if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (least > input->sm.smCount) return CUDA_ERROR_INVALID_VALUE;
    const unsigned each = std::max((least + kSmallest - 1) / kSmallest, 1U) * kSmallest;
    const unsigned most = input->sm.smCount / each;
    *count = made ? std::min(*count, most) : most;
    for (unsigned i = 0; made && i < *count; ++i) made[i] = resource_of(each);
    if (rest) *rest = resource_of(input->sm.smCount - *count * each);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc* handle, CUdevResource* resources, unsigned count) {
    EMULATOR_ENTER();
    if (!handle || !resources || count == 0) return CUDA_ERROR_INVALID_VALUE;
    unsigned processors = 0;
    for (unsigned i = 0; i < count; ++i) {
        if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
        processors += resources[i].sm.smCount;
    }
    if (processors == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    auto* made = new ResourceDescription{processors};
    descriptions().insert(made);
    *handle = reinterpret_cast<CUdevResourceDesc>(made);
    return CUDA_SUCCESS;
}

// How many processors it has is kept, and changes nothing of how long kernels take.
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc description, CUdevice device, unsigned flags) {
    if (!handle || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    CUcontext primary = nullptr;
    EMULATOR_TRY(cuDevicePrimaryCtxRetain(&primary, device));
    EMULATOR_ENTER();
    const ResourceDescription* named_one = named(descriptions(), description);
    Context* base = named(objects().contexts, primary);
    CUresult result = named_one && base ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    Context* green = nullptr;
    if (result == CUDA_SUCCESS) {
        green = new Context{.slot = base->slot,
                            .gpu = base->gpu,
                            .flags = base->flags,
                            .primary = false,
                            .base = base,
                            .processors = named_one->processors};
        result = make_stream(driver, *green, 0, CU_STREAM_DEFAULT, green->legacy);
    }
    if (result != CUDA_SUCCESS) {
        delete green;
        guard.unlock();
        cuDevicePrimaryCtxRelease(device);
        return result;
    }
    objects().contexts.insert(green);
    *handle = reinterpret_cast<CUgreenCtx>(green);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx handle) {
    CUdevice device = 0;
    {
        EMULATOR_ENTER();
        Context* green = from(handle);
        if (!green) return CUDA_ERROR_INVALID_CONTEXT;
        device = static_cast<CUdevice>(green->gpu);
        wait_for_all(driver, *green, guard);
        if (!from(handle)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;  // another thread was first
        drop_part(driver, *green);
    }
    return cuDevicePrimaryCtxRelease(device);
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
    EMULATOR_ENTER();
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    if (!from(handle)) return CUDA_ERROR_INVALID_CONTEXT;
    *context = reinterpret_cast<CUcontext>(handle);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* handle, CUgreenCtx context, unsigned flags, int priority) {
    EMULATOR_ENTER();
    Context* green = from(context);
    if (!green) return CUDA_ERROR_INVALID_CONTEXT;
    if (!handle || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    Stream* made = nullptr;
    EMULATOR_TRY(make_stream(driver, *green, priority, flags, made));
    *handle = reinterpret_cast<CUstream>(made);
    return CUDA_SUCCESS;
}
