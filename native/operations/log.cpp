// The newest operations: an event after each, which the dispatcher looks at.
#include <algorithm>

#include "core/guest.hpp"
#include "operations/engine.hpp"

namespace runlist::operations {
namespace {

void done(Log& log, Logged& one) {
    if (one.number > log.taken) {
        log.ring[(one.number - 1) % Log::kRoom].done_ns = static_cast<std::uint64_t>(monotonic_ns());
    }
    one.number = 0;
}

}  // namespace

void note(Engine& all, const Client& client, const Work& work, std::int64_t launched_ns) {
    rl_operation one{};
    one.called_ns = static_cast<std::uint64_t>(work.called_ns != 0 ? work.called_ns : launched_ns);
    one.launched_ns = static_cast<std::uint64_t>(launched_ns);
    one.client = static_cast<std::uint32_t>(client.index);
    one.kind = static_cast<std::uint32_t>(work.kind);
    one.operation_class = work.cost.of_class;
    one.sms = work.cost.sms;
    if (work.function != nullptr) {
        all.kernels.visit(*work.calls, work.function,
                          [&](const Kernel& kernel) { std::copy(kernel.name.begin(), kernel.name.end(), one.name); });
    }
    {
        const Held held(all.log.lock);
        Log& log = all.log;
        const std::uint64_t number = ++log.written;
        if (log.written - log.taken > Log::kRoom) {
            ++log.taken;
            ++log.lost;
        }
        log.ring[(number - 1) % Log::kRoom] = one;
        Logged* place = nullptr;
        for (Logged& waiting : log.waiting) {
            if (waiting.number != 0) continue;
            if (place == nullptr || (work.stream != nullptr && waiting.context == work.stream->context))
                place = &waiting;
        }
        if (place == nullptr || work.stream == nullptr) return;
        if (place->context != work.stream->context) {
            if (work.calls->cuEventCreate(&place->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
            place->context = work.stream->context;
            place->calls = work.calls;
        }
        if (work.calls->cuEventRecord(place->event, work.handle) != CUDA_SUCCESS) return;
        place->number = number;
    }
    wake();
}

bool poll_log(Engine& all) {
    if (!all.logging.load(std::memory_order_relaxed)) return false;
    const Held asking(all.asking);
    if (all.any_capture()) return false;
    bool waits = false;
    const Held held(all.log.lock);
    Log& log = all.log;
    for (Logged& one : log.waiting) {
        if (one.number == 0) continue;
        if (one.calls->cuEventQuery(one.event) == CUDA_ERROR_NOT_READY) {
            waits = true;
            continue;
        }
        done(log, one);
    }
    return waits;
}

void forget_logged(Engine& all, CUcontext context) {
    const Held held(all.log.lock);
    for (Logged& one : all.log.waiting) {
        if (one.context != context) continue;
        if (one.number != 0) done(all.log, one);
        one = {};
    }
}

}  // namespace runlist::operations
