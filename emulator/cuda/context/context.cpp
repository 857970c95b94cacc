#include "cuda/context/context.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/event.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/execution/stream.hpp"
#include "cuda/kernel/module.hpp"
#include "cuda/memory/allocation.hpp"
#include "cuda/memory/space.hpp"

namespace emulator::cuda {
namespace {

// Its handle stays the same whether or not it is made, and again when it is made anew: so do those of NVIDIA's driver.
struct Primary {
    Context* const place = std::allocator<Context>().allocate(1);
    Context* context = nullptr;  // `place` while it is made
    unsigned uses = 0;
    unsigned flags = 0;
};

// The GPU is there.
Primary& primary_of(CUdevice device) { return kept<std::map<CUdevice, Primary>>()[device]; }

// What a context takes of the GPU's memory for itself, by object. On an H200 it is 518 MiB together.
constexpr std::uint64_t kOverhead[] = {4 << 20, 2 << 20, 2 << 20};

void give_overhead(Driver& driver, const std::vector<DeviceMemory>& overhead) {
    for (const DeviceMemory& memory : overhead) driver.rm.give(memory);
}

CUresult take_overhead(Driver& driver, std::uint32_t gpu, std::vector<DeviceMemory>& overhead) {
    for (const std::uint64_t bytes : kOverhead) {
        DeviceMemory memory;
        if (const CUresult result = take_memory(driver, gpu, bytes, memory); result != CUDA_SUCCESS) {
            give_overhead(driver, overhead);
            return result;
        }
        overhead.push_back(memory);
    }
    return CUDA_SUCCESS;
}

CUresult destroy_context(Driver& driver, Context& context) {
    const std::set<Context*> all = objects().contexts;
    for (Context* other : all)
        if (other->base == &context) drop_part(driver, *other);
    while (!context.streams.empty()) destroy_stream(driver, **context.streams.begin());
    free_all_memory(driver, context);
    drop_code(driver, context);
    driver.on_synchronized();
    give_overhead(driver, context.overhead);
    const std::set<Event*> events = objects().events;
    for (Event* event : events)
        if (event->context == &context) destroy_event(*event);
    const CUresult result = driver.connection.call({.call = wire::Call::kCloseContext, .context = context.slot});
    objects().contexts.erase(&context);
    std::erase(context_stack(), &context);
    const bool primary = context.primary;
    std::destroy_at(&context);
    if (!primary) std::allocator<Context>().deallocate(&context, 1);
    return result;
}

// With what it was given to call; in the meantime another thread may have been first, or made it anew.
CUresult destroy_primary(Driver& driver, Primary& primary, std::unique_lock<std::mutex>& guard) {
    finish_host_calls(*primary.context, guard);
    if (!primary.context || primary.uses > 0) return CUDA_SUCCESS;
    return destroy_context(driver, *std::exchange(primary.context, nullptr));
}

// In `place`, which is a primary context's; else anywhere.
CUresult make_context(Driver& driver, CUdevice device, unsigned flags, Context* place, Context*& made) {
    const auto gpu = static_cast<std::uint32_t>(device);
    std::vector<DeviceMemory> overhead;
    EMULATOR_TRY(take_overhead(driver, gpu, overhead));
    UniqueFd node = driver.connection.open_node();
    wire::Reply reply{};
    if (const CUresult result = driver.connection.call({.call = wire::Call::kOpenContext, .gpu = gpu}, reply);
        result != CUDA_SUCCESS) {
        give_overhead(driver, overhead);
        return result;
    }
    driver.connection.rm.repeat_made();
    const bool primary = place != nullptr;
    if (!primary) place = std::allocator<Context>().allocate(1);
    made = new (place) Context{reply.value, gpu, flags, primary, std::move(node), std::move(overhead)};
    objects().contexts.insert(made);
    const CUresult result = make_stream(driver, *made, 0, CU_STREAM_DEFAULT, made->legacy);
    if (result != CUDA_SUCCESS) destroy_context(driver, *std::exchange(made, nullptr));
    return result;
}

CUcontext to(Context* context) { return reinterpret_cast<CUcontext>(context); }
Context* from(CUcontext handle) { return named(objects().contexts, handle); }

// What is wrong with a handle that names no context: that of a primary one may be known before it is made, and after.
CUresult without_context(CUcontext handle) {
    const auto names = [&](const auto& one) { return to(one.second.place) == handle; };
    return std::ranges::any_of(kept<std::map<CUdevice, Primary>>(), names) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                                           : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

void drop_part(Driver& driver, Context& green) {
    for (Stream* own : {green.legacy, green.gathering})
        if (own) destroy_stream(driver, *own);
    while (!green.streams.empty()) detach_stream(driver, **green.streams.begin());
    objects().contexts.erase(&green);
    delete &green;
}

CUresult name_primary(CUcontext* handle, CUdevice device) {
    EMULATOR_ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    *handle = to(primary_of(device).place);
    return CUDA_SUCCESS;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
    EMULATOR_ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    Primary& primary = primary_of(device);
    if (!primary.context) {
        EMULATOR_TRY(make_context(driver, device, primary.flags, primary.place, primary.context));
    }
    ++primary.uses;
    *handle = to(primary.context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
    EMULATOR_ENTER();
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    Primary& primary = primary_of(device);
    if (primary.uses == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary.uses > 0) return CUDA_SUCCESS;
    return destroy_primary(driver, primary, guard);
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
    EMULATOR_ENTER();
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    Primary& primary = primary_of(device);
    primary.uses = 0;
    return primary.context ? destroy_primary(driver, primary, guard) : CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    EMULATOR_ENTER();
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    const Primary& primary = primary_of(device);
    *flags = primary.flags;
    *active = primary.context != nullptr;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    EMULATOR_ENTER();
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    Primary& primary = primary_of(device);
    primary.flags = flags;
    if (primary.context) primary.context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* handle, unsigned flags, CUdevice device) {
    EMULATOR_ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    Context* made = nullptr;
    EMULATOR_TRY(make_context(driver, device, flags, nullptr, made));
    context_stack().push_back(made);
    *handle = to(made);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext* handle, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
    if (parameters && (parameters->execAffinityParams || parameters->cigParams)) return CUDA_ERROR_NOT_SUPPORTED;
    return cuCtxCreate_v2(handle, flags, device);
}

CUresult CUDAAPI cuCtxDestroy(CUcontext handle) {
    EMULATOR_ENTER();
    Context* context = from(handle);
    if (!context || context->primary || context->base) return CUDA_ERROR_INVALID_CONTEXT;
    finish_host_calls(*context, guard);
    context = from(handle);  // another thread may have been first
    return context ? destroy_context(driver, *context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
    EMULATOR_ENTER();
    Context* context = from(handle);
    if (!context) return without_context(handle);
    context_stack().push_back(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* handle) {
    EMULATOR_ENTER_CONTEXT();
    if (handle) *handle = to(current_place());
    context_stack().pop_back();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
    EMULATOR_ENTER();
    Context* context = from(handle);
    if (handle && !context) return without_context(handle);
    std::vector<Context*>& stack = context_stack();
    if (!stack.empty()) stack.pop_back();
    if (context) stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* handle) {
    EMULATOR_ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    *handle = to(current_place());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
    EMULATOR_ENTER_CONTEXT();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = static_cast<CUdevice>(context.gpu);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
    EMULATOR_ENTER_CONTEXT();
    EMULATOR_TRY(allow_synchronize(context));
    const CUresult result = wait_for_all(driver, *current_place(), guard);
    driver.on_synchronized();
    return result;
}
