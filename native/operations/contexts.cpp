// Waits for a context: for what a client gave it, on whichever streams.
#include "operations/engine.hpp"

namespace runlist::operations {

bool has_legacy(Client& client, const Calls& calls) {
    const CUcontext context = driver::context_of(calls, nullptr);
    return client.legacy.any(context);
}

void await_legacy(Client& client, const Calls& calls) {
    const CUcontext context = driver::context_of(calls, nullptr);
    if (!client.legacy.any(context)) return;
    const std::uint64_t given = client.legacy.given();
    calls.cuStreamSynchronize(CU_STREAM_LEGACY);
    client.legacy.is_done(given, context);
}

bool knows_streams(Client& client, const Calls& calls) {
    const CUcontext context = driver::context_of(calls, nullptr);
    return !here().processes && client.per_thread.load() == 0 && !client.context.any(context);
}

CUresult synchronize(Client& client, const Calls& calls) {
    const CUcontext context = driver::context_of(calls, nullptr);
    CUresult result = CUDA_SUCCESS;
    here().streams.each([&](const void*, Stream& stream) {
        if ((stream.used_by.load() >> client.index & 1) == 0 || (stream.context != context && stream.part != context))
            return;
        const CUresult one = calls.cuStreamSynchronize(stream.handle);
        if (result == CUDA_SUCCESS) result = one;
    });
    if (result == CUDA_SUCCESS) await_legacy(client, calls);
    return result;
}

WholeContext::WholeContext(Client& client, const Calls& calls)
    : client_(client), given_{client.context.given(), client.legacy.given()} {
    context_ = driver::context_of(calls, nullptr);
    if (client.context.any(context_)) flush_others(&client);  // its threads may have been other clients
}

void WholeContext::is_idle() {
    gave_elsewhere = false;
    client_.context.is_done(given_[0], context_);
    client_.legacy.is_done(given_[1], context_);
}

}  // namespace runlist::operations
