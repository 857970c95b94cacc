#include "cuda/execution/current.hpp"

#include <cstdlib>

namespace emulator::cuda {

std::vector<Context*>& context_stack() {
    static thread_local std::vector<Context*> stack;
    return stack;
}

Context* current_place() {
    const std::vector<Context*>& stack = context_stack();
    return !stack.empty() && objects().contexts.contains(stack.back()) ? stack.back() : nullptr;
}

Context* current_context() {
    Context* place = current_place();
    return place ? &place->whole() : nullptr;
}

CUresult context_error(const Driver& driver, const Context& context) {
    return static_cast<CUresult>(driver.connection.page().context_error[context.slot].load(std::memory_order_acquire));
}

CUresult no_such_handle() {
    if (std::getenv(names::kEmulatedCrashes)) std::abort();
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult no_such_stream(CUstream handle) {
    return named(objects().detached, handle) ? CUDA_ERROR_STREAM_DETACHED : no_such_handle();
}

}  // namespace emulator::cuda
