#include "cap/context.hpp"

#include <memory>

#include "core/pages.hpp"
#include "core/say.hpp"
#include "driver/streams.hpp"
#include "region/region.hpp"

namespace runlist::cap {

constinit std::atomic<const region::Limit*> limit{};

namespace {

constinit std::atomic<Accounts> accounts{};

constexpr std::int64_t kPatienceNs = 1'000 * kMillisecond;    // with a driver that does not answer
constexpr std::int64_t kUnusedNs = 60'000 * kMillisecond;     // after which a full table may forget a context
constexpr std::int64_t kSaidAgainNs = 10'000 * kMillisecond;  // not more often

// Each is of memory that the first context in it takes. A context has some hundred MiB on the GPU: there are not many.
constexpr int kPieces = 32;
struct Piece {
    Context contexts[16]{};
};

constinit Piece first{};
constinit std::atomic<Piece*> pieces[kPieces]{&first};
constinit Lock table_lock;
constinit std::atomic<std::int64_t> said_ns{};

// Until `visit` returns true.
template <typename Visit>
void each(const Visit& visit) {
    for (const std::atomic<Piece*>& place : pieces) {
        Piece* piece = place.load(std::memory_order_acquire);
        if (piece == nullptr) return;
        for (Context& context : piece->contexts) {
            if (visit(context)) return;
        }
    }
}

// Of what may go on for long.
template <typename... Words>
void say_sometimes(Words... words) {
    const std::int64_t now = monotonic_ns();
    std::int64_t last = said_ns.load(std::memory_order_relaxed);
    if (last != 0 && now - last < kSaidAgainNs) return;
    if (said_ns.compare_exchange_strong(last, now, std::memory_order_relaxed)) say(Level::kWarning, words...);
}

const void* identity(const Calls& calls) { return reinterpret_cast<const void*>(calls.cuEventRecord); }

std::uint64_t number_of(const Calls& calls, CUcontext context) {
    unsigned long long number = 0;
    if (calls.cuCtxGetId == nullptr || calls.cuCtxGetId(context, &number) != CUDA_SUCCESS) return 0;
    return number;
}

Context* known(CUcontext handle, const void* copy) {
    Context* found = nullptr;
    each([&](Context& context) {
        if (context.handle != handle || context.copy != copy) return false;
        found = &context;
        return true;
    });
    return found;
}

// Room for more contexts. nullptr when there was enough, or there is no memory.
Context* grow() {
    for (std::atomic<Piece*>& place : pieces) {
        if (place.load(std::memory_order_relaxed) != nullptr) continue;
        void* pages = map_pages(sizeof(Piece));
        if (pages == nullptr) return nullptr;
        auto* piece = std::construct_at(static_cast<Piece*>(pages));
        place.store(piece, std::memory_order_release);
        return &piece->contexts[0];
    }
    return nullptr;
}

// An entry for a context that has none, under the table's lock: a free one, or one that was not used for long. Its
// events are lost with it, as nobody knows whether its context still has them; so none is taken that is in use.
Context* choose(std::int64_t now) {
    Context* free = nullptr;
    Context* oldest = nullptr;
    each([&](Context& context) {
        if (!context.lock.is_free()) return false;
        if (context.handle == nullptr) free = &context;
        if (oldest == nullptr || context.used < oldest->used) oldest = &context;
        return free != nullptr;
    });
    if (free == nullptr) free = grow();
    if (free == nullptr && oldest != nullptr && now - oldest->used > kUnusedNs) free = oldest;
    if (free == nullptr) say_sometimes("too many CUDA contexts: the compute cap does not hold in the last");
    return free;
}

void vacate(Context& context) {
    context.handle = nullptr;
    ++context.epoch;
    std::construct_at(&context.meter);
}

void set_up(Context& context, const Calls& calls, CUcontext handle, std::uint64_t id, std::uint32_t space) {
    vacate(context);
    context.id = id;
    context.space = space;
    context.account = {};
    context.own_turn = 0;
    CUuuid uuid{};
    if (calls.cuCtxPushCurrent(handle) != CUDA_SUCCESS) return;
    CUcontext popped = nullptr;
    CUdevice device = 0;
    if (calls.cuCtxGetDevice(&device) == CUDA_SUCCESS && calls.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) {
        context.device = device;
        std::uint8_t bytes[16];
        for (int index = 0; index < 16; ++index) bytes[index] = static_cast<std::uint8_t>(uuid.bytes[index]);
        if (const Accounts ask = accounts.load(std::memory_order_acquire)) context.account = ask(bytes);
    }
    calls.cuCtxPopCurrent(&popped);
    context.copy = identity(calls);
    context.handle = handle;
}

// Where the lock is not to be had, its holder finds out by the handle.
template <typename Predicate>
void forget_if(const Predicate& is_gone) {
    each([&](Context& context) {
        if (context.handle == nullptr || !is_gone(context)) return false;
        const bool entered = context.enter(Caller::here());
        if (!entered) context.handle = nullptr;
        if (entered && is_gone(context)) vacate(context);
        if (entered) context.lock.release();
        return false;
    });
}

}  // namespace

void start(const region::Limit& cap, Accounts ask) {
    accounts.store(ask, std::memory_order_release);
    limit.store(&cap, std::memory_order_release);  // whoever sees it sees the accounts, too
}

std::uint64_t Context::cap() const {
    const region::Limit* of_all = limit.load(std::memory_order_acquire);
    if (of_all == nullptr) return region::kNoLimit;
    return account.cap != nullptr ? region::read(*account.cap, *of_all) : region::read(*of_all);
}

// The first who waits in vain begins an incident: nobody waits again, and launches go by, until the lock is had.
bool Context::enter(Caller caller) {
    const int error = lock.acquire(caller, stuck.load(std::memory_order_relaxed) ? 0 : kPatienceNs);
    if (error == 0) {
        if (stuck.exchange(false, std::memory_order_relaxed)) say(Level::kWarning, "the compute cap holds again");
    } else if (error == -EBUSY && !stuck.exchange(true, std::memory_order_relaxed)) {
        say(Level::kWarning, "the driver does not answer for a second: the compute cap does not hold until it does");
    }
    return error == 0;
}

Context* Context::enter(const Calls& calls, CUstream stream, Caller caller, std::int64_t now) {
    const CUcontext handle = driver::context_of(calls, stream);
    if (handle == nullptr) return nullptr;
    const std::uint64_t id = number_of(calls, handle);
    const void* copy = identity(calls);
    Context* found = known(handle, copy);
    if (found == nullptr) {
        if (table_lock.acquire(caller) != 0) return nullptr;
        found = known(handle, copy);  // another thread was faster
        if (found == nullptr) found = choose(now);
        const bool entered = found != nullptr && found->enter(caller);
        if (entered && (found->handle != handle || found->copy != copy)) {
            set_up(*found, calls, handle, id, caller.space);
        }
        table_lock.release();
        if (!entered) return nullptr;
    } else if (!found->enter(caller)) {
        return nullptr;
    }
    if (found->handle == handle && (found->id != id || found->space != caller.space)) {
        set_up(*found, calls, handle, id, caller.space);
    }
    if (found->handle != handle || found->copy != copy) {
        found->lock.release();
        return nullptr;
    }
    found->used.store(now, std::memory_order_relaxed);
    return found;
}

void destroyed(CUcontext handle) {
    forget_if([handle](const Context& context) { return context.handle == handle; });
}

void released(const Calls& calls, CUdevice device) {
    unsigned flags = 0;
    int active = 0;
    if (calls.cuDevicePrimaryCtxGetState == nullptr ||
        calls.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || active != 0) {
        return;
    }
    forget_if([&](const Context& context) { return context.device == device && context.copy == identity(calls); });
}

}  // namespace runlist::cap
