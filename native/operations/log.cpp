// The newest operations: an event after each, which the dispatcher looks at.
#include <algorithm>

#include "core/guest.hpp"
#include "operations/engine.hpp"

namespace runlist::operations {
namespace {

constexpr std::int64_t kSameClockNs = 500'000'000;  // the GPU tells milliseconds, in 24 bits
constexpr std::int64_t kAnswersNs = 500'000;        // within which it answers, or it is not asked
constexpr std::int64_t kAgainNs = 50'000'000;

// By the GPU's own clock, if there is one of its context.
std::int64_t time_of(const Log& log, const Logged& one, std::int64_t now) {
    if (one.calls->cuEventElapsedTime == nullptr) return now;
    for (const Clock& clock : log.clocks) {
        float since_ms = 0;
        if (clock.at_ns == 0 || clock.context != one.context) continue;
        if (one.calls->cuEventElapsedTime(&since_ms, clock.event, one.event) != CUDA_SUCCESS) return now;
        const double then = static_cast<double>(since_ms) * 1e6;
        if (!(then > -1e12 && then < 1e12)) return now;
        return std::min(now, clock.at_ns + static_cast<std::int64_t>(then));
    }
    return now;
}

void done(Log& log, Logged& one, std::int64_t at_ns) {
    if (one.number > log.taken) {
        rl_operation& there = log.ring[(one.number - 1) % Log::kRoom];
        there.done_ns = std::max(there.launched_ns, static_cast<std::uint64_t>(at_ns));
    }
    one.number = 0;
}

// Sets a clock that is old, or makes it. False where the GPU does not answer at once: it may be somebody else's turn.
bool set_clock(Clock& clock, const Calls& calls, CUcontext context) {
    CUcontext current = nullptr;
    calls.cuCtxGetCurrent(&current);
    if (current != context && calls.cuCtxSetCurrent(context) != CUDA_SUCCESS) return false;
    if (clock.context == nullptr) {
        Clock made{.context = context, .stream = nullptr, .event = nullptr, .at_ns = 0, .again_ns = 0};
        if (calls.cuEventCreate(&made.event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) return false;
        if (calls.cuStreamCreateWithPriority(&made.stream, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) {
            if (calls.cuEventDestroy_v2 != nullptr) calls.cuEventDestroy_v2(made.event);
            return false;
        }
        clock = made;
    }
    clock.at_ns = 0;
    if (calls.cuEventRecord(clock.event, clock.stream) != CUDA_SUCCESS) return false;
    const std::int64_t began = monotonic_ns();
    for (;;) {
        const CUresult answer = calls.cuEventQuery(clock.event);
        const std::int64_t now = monotonic_ns();
        if (answer == CUDA_SUCCESS) {
            clock.at_ns = now;
            return true;
        }
        if (answer != CUDA_ERROR_NOT_READY || now - began > kAnswersNs) return false;
    }
}

// Has a clock of each context that has operations under way. In the dispatcher, without the log's lock.
void set_clocks(Engine& all) {
    Log& log = all.log;
    for (Clock& clock : log.clocks) {
        const std::int64_t now = monotonic_ns();
        Logged wanting{};
        {
            const Held held(log.lock);
            for (const Logged& one : log.waiting) {
                if (one.number == 0 || one.calls->cuEventElapsedTime == nullptr) continue;
                const bool has_another = std::ranges::any_of(
                    log.clocks, [&](const Clock& other) { return &other != &clock && other.context == one.context; });
                if (clock.context == nullptr ? !has_another : clock.context == one.context) wanting = one;
            }
        }
        if (wanting.number == 0 || now - clock.at_ns < kSameClockNs || now < clock.again_ns) continue;
        if (!set_clock(clock, *wanting.calls, wanting.context)) clock.again_ns = now + kAgainNs;
    }
}

// How many SMs a kernel's blocks fill; 0 where that cannot be told.
std::uint32_t sms_of(const Calls& calls, CUfunction function, const Shape& shape) {
    if (shape.blocks == 0 || calls.cuOccupancyMaxActiveBlocksPerMultiprocessor == nullptr) return 0;
    int at_once = 0;
    const std::uint64_t sms = sms_of_device(calls);
    if (calls.cuOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, function, static_cast<int>(shape.threads),
                                                          shape.shared) != CUDA_SUCCESS ||
        at_once < 1) {
        return 0;
    }
    const auto each = static_cast<std::uint64_t>(at_once);
    return static_cast<std::uint32_t>(std::min((shape.blocks + each - 1) / each, sms));
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
        if (one.sms == 0) one.sms = sms_of(*work.calls, work.function, work.shape);
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
            CUevent made = nullptr;
            if (make_event(*work.stream, CU_EVENT_DEFAULT, made) != CUDA_SUCCESS) return;
            if (place->event != nullptr && place->calls->cuEventDestroy_v2 != nullptr)
                place->calls->cuEventDestroy_v2(place->event);
            *place = {.event = made, .context = work.stream->context, .calls = work.calls, .number = 0};
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
    set_clocks(all);
    bool waits = false;
    const Held held(all.log.lock);
    Log& log = all.log;
    for (Logged& one : log.waiting) {
        if (one.number == 0) continue;
        if (one.calls->cuEventQuery(one.event) == CUDA_ERROR_NOT_READY) {
            waits = true;
            continue;
        }
        done(log, one, time_of(log, one, monotonic_ns()));
    }
    return waits;
}

void forget_logged(Engine& all, CUcontext context) {
    const Held held(all.log.lock);
    for (Logged& one : all.log.waiting) {
        if (one.context != context) continue;
        if (one.number != 0) done(all.log, one, monotonic_ns());
        one = {};
    }
    for (Clock& clock : all.log.clocks) {
        if (clock.context == context) clock = {};
    }
}

}  // namespace runlist::operations
