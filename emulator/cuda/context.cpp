// Contexts: the primary one of each GPU, those made by hand, and the stack of the calling thread.
#include <algorithm>
#include <utility>

#include "cuda/capture.hpp"
#include "cuda/driver.hpp"
#include "cuda/memory.hpp"
#include "cuda/memory_pool.hpp"

namespace emulator::cuda {
namespace {

thread_local std::vector<Context*> stack;

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
    wire::Request request{.call = wire::Call::kCloseContext, .context = context.slot};
    wire::Reply reply{};
    while (!context.streams.empty()) destroy_stream(driver, **context.streams.begin());
    free_all_memory(driver, context);
    give_overhead(driver, context.overhead);
    std::erase_if(driver.events, [&](Event* event) {
        if (event->context != &context) return false;
        driver.event_slots[event->slot] = false;
        delete event;
        return true;
    });
    const CUresult result = driver.connection.call(request, reply);
    driver.contexts.erase(&context);
    std::erase(stack, &context);
    delete &context;
    return result;
}

CUresult make_context(Driver& driver, int gpu, unsigned flags, bool primary, Context*& made) {
    wire::Request request{.call = wire::Call::kOpenContext, .gpu = static_cast<std::uint32_t>(gpu)};
    wire::Reply reply{};
    std::vector<DeviceMemory> overhead;
    if (const CUresult result = take_overhead(driver, request.gpu, overhead); result != CUDA_SUCCESS) return result;
    UniqueFd node = driver.connection.open_node();
    if (const CUresult result = driver.connection.call(request, reply); result != CUDA_SUCCESS) {
        give_overhead(driver, overhead);
        return result;
    }
    made = new Context{reply.value, gpu, flags, primary, std::move(node)};
    made->overhead = std::move(overhead);
    driver.contexts.insert(made);
    const CUresult result = make_stream(driver, *made, 0, CU_STREAM_DEFAULT, made->legacy);
    if (result != CUDA_SUCCESS) destroy_context(driver, *std::exchange(made, nullptr));
    return result;
}

Context* from(CUcontext handle) { return reinterpret_cast<Context*>(handle); }
CUcontext to(Context* context) { return reinterpret_cast<CUcontext>(context); }

bool valid(const Driver& driver, CUdevice device) {
    return device >= 0 && static_cast<std::size_t>(device) < driver.primaries.size();
}

}  // namespace

Context* current_context(Driver& driver) {
    return !stack.empty() && driver.contexts.contains(stack.back()) ? stack.back() : nullptr;
}

CUresult context_error(const Driver& driver, const Context& context) {
    return static_cast<CUresult>(driver.connection.page().context_error[context.slot].load(std::memory_order_acquire));
}

CUresult retain_primary(CUcontext* handle, CUdevice device) {
    EMULATOR_ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(driver, device)) return CUDA_ERROR_INVALID_DEVICE;
    Primary& primary = driver.primaries[static_cast<std::size_t>(device)];
    if (!primary.context) {
        const CUresult result = make_context(driver, device, primary.flags, true, primary.context);
        if (result != CUDA_SUCCESS) return result;
    }
    ++primary.uses;
    *handle = to(primary.context);
    return CUDA_SUCCESS;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) { return retain_primary(handle, device); }

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
    EMULATOR_ENTER();
    if (!valid(driver, device)) return CUDA_ERROR_INVALID_DEVICE;
    Primary& primary = driver.primaries[static_cast<std::size_t>(device)];
    if (primary.uses == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary.uses > 0) return CUDA_SUCCESS;
    return destroy_context(driver, *std::exchange(primary.context, nullptr));
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
    EMULATOR_ENTER();
    if (!valid(driver, device)) return CUDA_ERROR_INVALID_DEVICE;
    Primary& primary = driver.primaries[static_cast<std::size_t>(device)];
    primary.uses = 0;
    return primary.context ? destroy_context(driver, *std::exchange(primary.context, nullptr)) : CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    EMULATOR_ENTER();
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(driver, device)) return CUDA_ERROR_INVALID_DEVICE;
    const Primary& primary = driver.primaries[static_cast<std::size_t>(device)];
    *flags = primary.flags;
    *active = primary.context != nullptr;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    EMULATOR_ENTER();
    if (!valid(driver, device)) return CUDA_ERROR_INVALID_DEVICE;
    Primary& primary = driver.primaries[static_cast<std::size_t>(device)];
    primary.flags = flags;
    if (primary.context) primary.context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* handle, unsigned flags, CUdevice device) {
    EMULATOR_ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(driver, device)) return CUDA_ERROR_INVALID_DEVICE;
    Context* made = nullptr;
    const CUresult result = make_context(driver, device, flags, false, made);
    if (result != CUDA_SUCCESS) return result;
    stack.push_back(made);
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
    if (!driver.contexts.contains(context) || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    return destroy_context(driver, *context);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
    EMULATOR_ENTER();
    if (!driver.contexts.contains(from(handle))) return CUDA_ERROR_INVALID_CONTEXT;
    stack.push_back(from(handle));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* handle) {
    EMULATOR_ENTER_CONTEXT();
    if (handle) *handle = to(&context);
    stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
    EMULATOR_ENTER();
    if (handle && !driver.contexts.contains(from(handle))) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.empty()) stack.pop_back();
    if (handle) stack.push_back(from(handle));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* handle) {
    EMULATOR_ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    *handle = to(current_context(driver));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
    EMULATOR_ENTER_CONTEXT();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context.gpu;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
    EMULATOR_ENTER_CONTEXT();
    if (const CUresult result = allow_synchronize(context); result != CUDA_SUCCESS) return result;
    guard.unlock();
    const CUresult result = synchronize(driver, context);
    guard.lock();
    trim_pools(driver);
    return result;
}
