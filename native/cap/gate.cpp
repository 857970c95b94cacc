#include "cap/gate.hpp"

#include <algorithm>

#include "cap/host.hpp"
#include "core/guest.hpp"

namespace runlist::cap {

namespace {

constexpr std::int64_t kSliceNs = 2 * kMillisecond;      // of a wait: then the cap may have changed, and work completed
constexpr std::int64_t kLookNs = 100 * kMicrosecond;     // until there is room to measure
constexpr std::int64_t kHeldBackNs = 50 * kMillisecond;  // for room: work may wait on the GPU for what we hold back
constexpr std::int64_t kExtraNs = 10'000 * kMillisecond;  // of a wait, beyond what it was to last when it began
constexpr std::int64_t kNever = INT64_MAX;
constexpr std::int64_t kRunNs = 2 * kMillisecond;     // GPU time that is handed out at once after a wait
constexpr std::int64_t kTailNs = 300 * kMicrosecond;  // the last of it, of which nothing is to stay unmeasured

// Wall time to save up before work that had to wait goes on. Launched one by one as the clock allows, short work would
// meet an idle GPU each time, and pay for the start of an idle GPU each time.
std::int64_t run(std::uint64_t cap) { return std::min(Clock::kSavedNs / 2, wall(kRunNs, cap)); }

Meter::Lane lane_of(CUstream stream, bool per_thread) {
    stream = stream_of(stream, per_thread);
    auto key = reinterpret_cast<std::uintptr_t>(stream);
    if (stream == CU_STREAM_PER_THREAD) key |= static_cast<std::uint64_t>(call(SYS_gettid)) << 32;
    return {stream, key};
}

void settle(Context& context, const Found& found, std::uint64_t cap, std::int64_t now) {
    if (found.correction != 0) context.clock().correct(now, wall(found.correction, cap));
    if (found.measured != 0 && context.account.gpu_ns != nullptr) {
        context.account.gpu_ns->fetch_add(static_cast<std::uint64_t>(found.measured), std::memory_order_relaxed);
    }
}

// The wait of one launch.
struct Wait {
    std::int64_t began;
    std::uint64_t cap = kWhole;    // as it was last seen
    Context* context = nullptr;    // that it waits at
    std::int64_t left = 0;         // until its turn, as it was last seen
    std::int64_t due = kNever;     // when it would come after the cap was raised
    std::int64_t latest = kNever;  // when it comes at the latest
    std::int64_t held = began;     // since when work runs on that was to be done by now

    // What was charged at a lower cap weighs less now.
    void follow(std::uint64_t now_holds, std::int64_t now) {
        if (now_holds > cap)
            due = std::min(due, now + left * static_cast<std::int64_t>(cap) / static_cast<std::int64_t>(now_holds));
        cap = now_holds;
    }

    void stand_at(Context* one) {
        if (context != nullptr) context->waiting.fetch_sub(1, std::memory_order_relaxed);
        context = one;
        if (context != nullptr) context->waiting.fetch_add(1, std::memory_order_relaxed);
    }
};

// Whether a launch goes on without a turn, in debt. Work that runs may wait on the GPU for the very work that is held
// back here, and the longer it runs the later the turn comes: nothing waits for that for ever.
bool is_let_through(const Context& context, Wait& wait, std::int64_t now) {
    const std::int64_t patience = context.meter.patience();
    if (patience == Meter::kForEver) wait.held = now;
    return now - wait.held > patience || now > wait.latest;
}

// Takes a turn for work of this kind. 0, or for how long to wait.
std::int64_t take(Context& context, Wait& wait, const Meter::Lane& lane, Estimates::Index work, std::int64_t now) {
    if (!context.meter.has_room(lane, work) && now - wait.began < kHeldBackNs) return kLookNs;
    const std::int64_t saved = context.waiting.load(std::memory_order_relaxed) > 0 ? run(wait.cap) : 0;
    Clock clock = context.clock();
    if (now >= wait.due) clock.forgive(now - saved);
    const std::int64_t cost = wall(context.meter.estimates().of(work), wait.cap);
    if (is_let_through(context, wait, now)) {
        clock.correct(now, cost);
        return 0;
    }
    wait.left = clock.take(now, saved, cost);
    if (wait.latest == kNever) wait.latest = now + wait.left + kExtraNs;
    return wait.left;
}

}  // namespace

Turn::Turn(const Calls& calls, CUstream stream, bool per_thread, const void* work)
    : calls_(calls), lane_(lane_of(stream, per_thread)) {
    if (!calls.complete() || is_capturing(calls, lane_.stream)) return;
    const Caller caller = Caller::here();
    Wait wait{.began = host.now()};
    for (;;) {
        const std::int64_t now = host.now();
        Context* context = Context::enter(calls, lane_.stream, caller, now);
        if (context == nullptr) break;
        std::int64_t pause = 0;
        if (const std::uint64_t cap = context->cap(); cap < kWhole && !context->meter.off()) {
            wait.follow(cap, now);
            const Relaxed relaxed(calls);
            settle(*context, context->meter.poll(calls, now), wait.cap, now);
            const Estimates::Index kind = context->meter.estimates().find(work);
            pause = take(*context, wait, lane_, kind, now);
            if (pause == 0) {
                context_ = context;
                epoch_ = context->epoch;
                const bool joinable = context->clock().saved(now) > wall(kTailNs, wait.cap);
                ticket_ = context->meter.begin(calls, context->handle, lane_, kind, context->meter.estimates().of(kind),
                                               joinable);
            } else {
                context->meter.divide(calls, lane_);  // the stream may run dry meanwhile
            }
        }
        context->lock.release();
        if (pause == 0) break;
        wait.stand_at(context);
        host.sleep(std::min(pause, kSliceNs));
    }
    wait.stand_at(nullptr);
}

void Turn::launched(bool ok) {
    if (context_ == nullptr || (ticket_.bracket == 0 && ok) || !context_->enter(Caller::here())) return;
    if (context_->epoch == epoch_ && context_->handle != nullptr) {
        const Relaxed relaxed(calls_);
        settle(*context_, context_->meter.end(calls_, lane_, ticket_, ok), context_->cap(), host.now());
    }
    context_->lock.release();
}

void divide(const Calls& calls, CUstream stream, bool per_thread) {
    if (!on() || !calls.complete()) return;
    const Meter::Lane lane = lane_of(stream, per_thread);
    if (is_capturing(calls, lane.stream)) return;
    Context* context = Context::enter(calls, lane.stream, Caller::here(), host.now());
    if (context == nullptr) return;
    if (!context->meter.off()) {
        const Relaxed relaxed(calls);
        context->meter.divide(calls, lane);
    }
    context->lock.release();
}

}  // namespace runlist::cap
