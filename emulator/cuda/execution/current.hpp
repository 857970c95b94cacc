// The contexts that the calling thread works in.
#pragma once

#include <vector>

#include "cuda/execution/objects.hpp"

namespace emulator::cuda {

// The calling thread's stack of contexts; those that have been destroyed may still be named in it.
std::vector<Context*>& context_stack();
// The calling thread's current context; nullptr when there is none, or when it has been destroyed.
Context* current_place();
// The same, or the primary context that it is a part of: whose memory, code and events are used.
Context* current_context();
// Sticky error of the context.
CUresult context_error(const Driver& driver, const Context& context);
// What a call that names an object which is none answers. NVIDIA's driver may well crash: so does this, where asked to.
CUresult no_such_handle();
// The same of a stream, which may have been a green context's.
CUresult no_such_stream(CUstream handle);

}  // namespace emulator::cuda

// Opens an entry point that needs a current context, as `context`; see EMULATOR_ENTER.
#define EMULATOR_ENTER_CONTEXT()                                                \
    EMULATOR_ENTER();                                                           \
    emulator::cuda::Context* const current = emulator::cuda::current_context(); \
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;                            \
    [[maybe_unused]] emulator::cuda::Context& context = *current
