#include "hooks/touch.hpp"

#include <algorithm>
#include <array>
#include <csignal>

#include "activity/activity.hpp"
#include "core/guest.hpp"
#include "core/lock.hpp"
#include "core/pages.hpp"
#include "core/relaxed.hpp"
#include "hooks/outermost.hpp"

namespace runlist::hooks {
namespace {

constexpr std::int64_t kAheadNs = 500'000;      // how long before the work a touch is best: a switch takes half of that
constexpr std::int64_t kLongestNs = 2'000'000;  // that a touch is put off
constexpr std::int64_t kShortestNs = 200'000;   // less is no matter
constexpr std::int64_t kLookNs = 1'000'000'000;
constexpr long kSignals = 65;

// Of a context that was touched, or is to be.
struct Place {
    std::atomic<CUcontext> context;  // null: free
    const cap::Calls* calls;
    CUdevice device;
    CUstream stream;
    CUdeviceptr memory;
};

// A child of fork finds it empty: it cannot use its parent's contexts. All but the atomics is under the lock.
struct Touches {
    Lock lock;
    std::atomic<bool> off;
    std::atomic<int> current;  // 0: none, else 1 + its place
    std::array<Place, 8> places;
};

constinit std::atomic<Touches*> all{nullptr};

bool can(const cap::Calls& calls) {
    return calls.complete() && calls.cuStreamCreate != nullptr && calls.cuMemAlloc_v2 != nullptr &&
           calls.cuMemsetD8Async != nullptr && calls.cuThreadExchangeStreamCaptureMode != nullptr;
}

// As the kernel has it.
struct Action {
    void* handler;
    unsigned long flags;
    void* restorer;
    std::uint64_t mask;
};

// Whether a handler may run while nothing is blocked. That is looked up once a second: it takes a few microseconds.
bool has_unblocking_handler() {
    static constinit std::atomic<std::int64_t> looked_ns{0};
    static constinit std::atomic<bool> found{false};
    const std::int64_t now = monotonic_ns();
    if (const std::int64_t last = looked_ns.load(kRelaxed); last != 0 && now - last < kLookNs)
        return found.load(kRelaxed);
    bool any = false;
    for (long number = 1; number < kSignals && !any; ++number) {
        Action action{};
        any = call(SYS_rt_sigaction, number, nullptr, &action, sizeof(action.mask)) == 0 &&
              (action.flags & SA_NODEFER) != 0 && reinterpret_cast<std::uintptr_t>(action.handler) > 1;
    }
    found.store(any, kRelaxed);
    looked_ns.store(now, kRelaxed);
    return any;
}

// A handler must not call the driver: the thread that it interrupted may be inside of it. While one runs its signal is
// blocked, unless it was installed otherwise.
bool may_be_in_a_handler() {
    std::uint64_t blocked = 0;
    return call(SYS_rt_sigprocmask, long{SIG_BLOCK}, nullptr, &blocked, sizeof(blocked)) != 0 || blocked != 0 ||
           has_unblocking_handler();
}

// The driver may start a thread: the program's signals are for its own, and those of the C library for all. So are
// those of faults, since that thread calls the program's functions for the host.
class Undisturbed {
  public:
    Undisturbed() {
        const std::uint64_t every = ~(kOfTheCLibrary | kFaults);
        call(SYS_rt_sigprocmask, long{SIG_BLOCK}, &every, &before_, sizeof(before_));
    }
    ~Undisturbed() { call(SYS_rt_sigprocmask, long{SIG_SETMASK}, &before_, nullptr, sizeof(before_)); }
    Undisturbed(const Undisturbed&) = delete;
    Undisturbed& operator=(const Undisturbed&) = delete;

  private:
    std::uint64_t before_ = 0;
};

int find(const Touches& touches, CUcontext context) {
    for (int index = 0; index < static_cast<int>(touches.places.size()); ++index) {
        if (touches.places[index].context.load(kRelaxed) == context) return index;
    }
    return -1;
}

bool make(Place& place, const cap::Calls& calls) {
    const cap::Relaxed relaxed(calls);
    place.calls = &calls;
    return calls.cuCtxGetDevice(&place.device) == CUDA_SUCCESS &&
           calls.cuStreamCreate(&place.stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
           calls.cuMemAlloc_v2(&place.memory, sizeof(std::uint32_t)) == CUDA_SUCCESS;
}

// On the driver's own thread for such functions.
void CUDA_CB put_off(void* until) {
    const auto until_ns = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(until));
    if (const std::int64_t left = std::min(until_ns - monotonic_ns(), kLongestNs); left > 0) pause_ns(left);
}

// With its context current. False where the driver refuses.
bool submit(const Place& place, std::int64_t lead_ns) {
    const cap::Calls& calls = *place.calls;
    const CUresult before = calls.cuStreamQuery(place.stream);
    if (before == CUDA_ERROR_NOT_READY) return true;  // the last one is not through yet
    if (before != CUDA_SUCCESS) return false;
    const std::int64_t later_ns = std::min(lead_ns - kAheadNs, kLongestNs);
    if (later_ns >= kShortestNs && calls.cuLaunchHostFunc != nullptr) {
        const auto until = static_cast<std::intptr_t>(monotonic_ns() + later_ns);
        if (calls.cuLaunchHostFunc(place.stream, put_off, reinterpret_cast<void*>(until)) != CUDA_SUCCESS) return false;
    }
    return calls.cuMemsetD8Async(place.memory, 0, sizeof(std::uint32_t), place.stream) == CUDA_SUCCESS;
}

}  // namespace

void prepare_touch(const cap::Calls& calls) {
    if (!can(calls)) return;
    Touches* touches = made<Touches, Unwiped::kRefused>(all);
    CUcontext context = nullptr;
    if (touches == nullptr || touches->off.load(kRelaxed) || calls.cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
        context == nullptr) {
        return;
    }
    int index = find(*touches, context);
    if (index < 0) {
        if (touches->lock.acquire(Caller::here(), 0) != 0) return;
        index = find(*touches, nullptr);
        if (index >= 0 && find(*touches, context) < 0) {
            Place& place = touches->places[index];
            if (make(place, calls)) {
                place.context.store(context);
            } else {
                touches->off.store(true, kRelaxed);
            }
        }
        touches->lock.release();
        if (index < 0) return;
    }
    if (touches->current.load(kRelaxed) != index + 1) touches->current.store(index + 1);
}

void touch(std::int64_t lead_ns) {
    Touches* touches = all.load(std::memory_order_acquire);
    if (touches == nullptr || touches->off.load(kRelaxed) || touches->current.load(kRelaxed) == 0) return;
    if (lead_ns > activity::kAtOnceNs || in_hook || activity::waiting || may_be_in_a_handler()) return;
    const int saved = errno;
    const Undisturbed undisturbed;
    if (touches->lock.acquire(Caller::here(), 0) != 0) return;
    const int current = touches->current.load(kRelaxed);
    const Place& place = touches->places[current == 0 ? 0 : current - 1];
    if (const CUcontext context = place.context.load(kRelaxed); current != 0 && context != nullptr) {
        const cap::Calls& calls = *place.calls;
        const cap::Relaxed relaxed(calls);
        CUcontext there = nullptr;
        const bool push = calls.cuCtxGetCurrent(&there) != CUDA_SUCCESS || there != context;
        const bool entered = !push || calls.cuCtxPushCurrent(context) == CUDA_SUCCESS;
        if (!entered || !submit(place, lead_ns)) touches->off.store(true, kRelaxed);
        if (push && entered) calls.cuCtxPopCurrent(&there);
    }
    touches->lock.release();
    errno = saved;
}

NoTouch::NoTouch() : locked_(false) {
    Touches* touches = all.load(std::memory_order_acquire);
    if (touches == nullptr) return;
    locked_ = touches->lock.acquire(Caller::here()) == 0;
    if (!locked_) touches->off.store(true);
}

NoTouch::~NoTouch() {
    if (locked_) all.load(std::memory_order_acquire)->lock.release();
}

void NoTouch::forget(const cap::Calls& calls, CUdevice device) const {
    unsigned flags = 0;
    int active = 0;
    if (!locked_ || calls.cuDevicePrimaryCtxGetState == nullptr ||
        calls.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active != 0) {
        return;
    }
    for (Place& place : all.load(std::memory_order_acquire)->places) {
        if (place.context.load(kRelaxed) != nullptr && place.device == device) place.context.store(nullptr);
    }
}

void forget_touch(CUcontext context) {
    Touches* touches = all.load(std::memory_order_acquire);
    if (touches == nullptr || find(*touches, context) < 0) return;
    const NoTouch none;
    if (const int index = find(*touches, context); index >= 0) touches->places[index].context.store(nullptr);
}

}  // namespace runlist::hooks
