#include "cap/context.hpp"

#include <memory>

#include "region/region.hpp"

namespace runlist::cap {

constinit std::atomic<const region::Limit*> limit{};

namespace {

constinit std::atomic<Accounts> accounts{};

constexpr int kContexts = 16;
constexpr int kGiveUp = 8;  // times that the lock could not be had, after which it is left alone

constinit Context table[kContexts]{};
constinit Lock table_lock;

const void* identity(const Calls& calls) { return reinterpret_cast<const void*>(calls.cuEventRecord); }

bool is_default(CUstream stream) {
    return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

CUcontext context_of(const Calls& calls, CUstream stream) {
    CUcontext context = nullptr;
    if (!is_default(stream) && calls.cuStreamGetCtx != nullptr &&
        calls.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS && context != nullptr) {
        return context;
    }
    return calls.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

std::uint64_t number_of(const Calls& calls, CUcontext context) {
    unsigned long long number = 0;
    if (calls.cuCtxGetId == nullptr || calls.cuCtxGetId(context, &number) != CUDA_SUCCESS) return 0;
    return number;
}

// An entry for a context that has none: a free one, or the one that was used longest ago.
Context* choose(CUcontext handle, const void* copy) {
    Context* chosen = &table[0];
    for (Context& context : table) {
        if (context.handle == handle && context.copy == copy) return &context;  // another thread was faster
        if (chosen->handle != nullptr && (context.handle == nullptr || context.used < chosen->used)) chosen = &context;
    }
    return chosen;
}

void vacate(Context& context) {
    context.handle = nullptr;
    ++context.epoch;
    std::construct_at(&context.meter);
}

void set_up(Context& context, const Calls& calls, CUcontext handle, std::uint64_t id, std::int32_t process) {
    vacate(context);
    context.id = id;
    context.process = process;
    context.account = {};
    context.own_turn = 0;
    CUuuid uuid{};
    if (calls.cuCtxPushCurrent(handle) != CUDA_SUCCESS) return;
    CUcontext popped = nullptr;
    if (calls.cuCtxGetDevice(&context.device) == CUDA_SUCCESS &&
        calls.cuDeviceGetUuid(&uuid, context.device) == CUDA_SUCCESS) {
        std::uint8_t bytes[16];
        for (int index = 0; index < 16; ++index) bytes[index] = static_cast<std::uint8_t>(uuid.bytes[index]);
        if (const Accounts ask = accounts.load(std::memory_order_relaxed)) context.account = ask(bytes);
    }
    calls.cuCtxPopCurrent(&popped);
    context.copy = identity(calls);
    context.handle = handle;
}

template <typename Predicate>
void forget_if(const Predicate& is_gone) {
    for (Context& context : table) {
        if (context.handle == nullptr || !context.enter(Caller::here())) continue;
        if (context.handle != nullptr && is_gone(context)) vacate(context);
        context.lock.release();
    }
}

}  // namespace

void start(const region::Limit& cap, Accounts ask) {
    accounts.store(ask, std::memory_order_relaxed);
    limit.store(&cap, std::memory_order_relaxed);
}

std::uint64_t Context::cap() const {
    const region::Limit* of_all = limit.load(std::memory_order_relaxed);
    if (of_all == nullptr) return region::kNoLimit;
    return account.cap != nullptr ? region::read(*account.cap, *of_all) : region::read(*of_all);
}

bool Context::enter(Caller caller) {
    if (stuck.load(std::memory_order_relaxed) >= kGiveUp) return false;
    const int error = lock.acquire(caller);
    if (error == 0) {
        stuck.store(0, std::memory_order_relaxed);
    } else if (error == -EBUSY) {
        stuck.fetch_add(1, std::memory_order_relaxed);
    }
    return error == 0;
}

Context* Context::enter(const Calls& calls, CUstream stream, Caller caller, std::int64_t now) {
    const CUcontext handle = context_of(calls, stream);
    if (handle == nullptr) return nullptr;
    const std::uint64_t id = number_of(calls, handle);
    Context* found = nullptr;
    for (Context& context : table) {
        if (context.handle == handle && context.copy == identity(calls)) found = &context;
    }
    if (found == nullptr) {
        if (table_lock.acquire(caller) != 0) return nullptr;
        found = choose(handle, identity(calls));
        const bool entered = found->enter(caller);
        if (entered && (found->handle != handle || found->copy != identity(calls))) {
            set_up(*found, calls, handle, id, caller.process);
        }
        table_lock.release();
        if (!entered) return nullptr;
    } else if (!found->enter(caller)) {
        return nullptr;
    }
    if (found->handle == handle && (found->id != id || found->process != caller.process)) {
        set_up(*found, calls, handle, id, caller.process);
    }
    if (found->handle != handle || found->copy != identity(calls)) {
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
