// The streams of clients: who made and uses which, the default stream of each, and the order between the two.
#include <utility>

#include "core/guest.hpp"
#include "core/relaxed.hpp"
#include "core/say.hpp"
#include "operations/engine.hpp"

namespace runlist::operations {
namespace {

CUstream default_in(Client& client, CUcontext context) {
    for (const Client::Default& one : client.defaults) {
        const CUcontext there = one.context.load(std::memory_order_acquire);
        if (there == context) return one.stream;
    }
    return nullptr;
}

// From now on it is counted what the client's default streams are given. Under its lock of order.
void count_defaults(Engine& all, Client& client) {
    if (client.blocking.fetch_add(1) != 0) return;
    all.streams.each([&](const void*, Stream& one) {
        if (one.user == client.index && default_in(client, one.part) == one.handle) one.given.fetch_add(1);
    });
}

// A stream has no entry.
void has_no_room(Engine& all, Client& user, bool blocking) {
    user.context.give();  // nobody could tell that it is the client's
    if (!blocking || all.crowded.exchange(true)) return;
    for (Client& client : all.all) {  // from now on all look
        const Held ordering(client.ordering);
        count_defaults(all, client);
    }
    all.given_unknown.give();
    all.given_defaults.give();
    say(Level::kWarning, "there are more blocking streams than can be told apart: all of them wait for each other");
}

// The driver's default stream of a context waits for all of its blocking streams, and they for it. Not beside a capture
// that this would spoil, nor in a green context of another thread.
bool bring_together(const Calls& calls, CUcontext context) {
    CUcontext current = nullptr;
    calls.cuCtxGetCurrent(&current);
    if (current != context && calls.cuCtxSetCurrent(context) != CUDA_SUCCESS) return false;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (calls.cuThreadExchangeStreamCaptureMode != nullptr) calls.cuThreadExchangeStreamCaptureMode(&mode);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const bool may = calls.cuStreamIsCapturing == nullptr ||
                     calls.cuStreamIsCapturing(CU_STREAM_LEGACY, &status) != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    CUevent event = nullptr;
    if (may && calls.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS) {
        calls.cuEventRecord(event, CU_STREAM_LEGACY);
        if (calls.cuEventDestroy_v2 != nullptr) calls.cuEventDestroy_v2(event);
    }
    if (calls.cuThreadExchangeStreamCaptureMode != nullptr) calls.cuThreadExchangeStreamCaptureMode(&mode);
    if (current != context) calls.cuCtxSetCurrent(current);
    return may;
}

}  // namespace

void unsettle(Engine& all) { all.unsettled.give(); }

void settle(Engine& all) {
    if (all.left.load()) return;
    const Held held(all.asking);  // no capture begins, and no context ends
    const std::uint64_t until = all.unsettled.given();
    bool whole = true;
    const auto each = [&](const auto& visit) {
        for (Client& client : all.all)
            for (Client::Default& one : client.defaults)
                if (const CUcontext context = one.context.load(std::memory_order_acquire)) visit(one, context);
    };
    each([&](const Client::Default& one, CUcontext context) {
        if (one.settled.load() >= until) return;
        if (!bring_together(*one.calls, context)) {
            whole = false;
            return;
        }
        each([&](Client::Default& other, CUcontext of) {
            if (of == context) other.settled.store(until);
        });
    });
    if (whole) all.unsettled.is_done(until);
}

void gives(Engine& all, const Stream* stream, bool per_thread) {
    if (all.processes || (stream != nullptr ? !stream->ordered : !per_thread)) return;
    const int who = own_client > 0 && own_client <= all.clients ? own_client : kNone;
    if (gave_as != who) [[unlikely]]
        change_hands(who);
}

void gives(const Calls& calls, CUstream stream, bool per_thread) {
    static constinit thread_local CUstream loose = nullptr;  // is none that is ordered, as long as none has ended
    static constinit thread_local std::uint64_t gone = 0;
    const Engine& all = here();
    const bool own = stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread);
    if (is_default(stream) && !own) return;
    gave_elsewhere = true;
    if (gave_as == kNone || all.processes) return;
    if (own) return change_hands(kNone);
    const std::uint64_t now = all.gone.load(kRelaxed);
    if (stream == loose && gone == now) return;
    unsigned flags = CU_STREAM_DEFAULT;
    if (calls.cuStreamGetFlags != nullptr) calls.cuStreamGetFlags(stream, &flags);
    if ((flags & CU_STREAM_NON_BLOCKING) == 0) return change_hands(kNone);
    loose = stream;
    gone = now;
}

Stream* entry_of(Engine& all, const Client& client, const Calls& calls, CUstream handle, int maker, bool is_default) {
    Stream* there = all.streams.find(handle);
    const auto user_bit = static_cast<std::uint16_t>(1U << client.index);
    if (there != nullptr && (there->used_by.load(kRelaxed) & user_bit) == 0) [[unlikely]]
        there->used_by.fetch_or(user_bit);
    if (there != nullptr || handle == nullptr || handle == CU_STREAM_PER_THREAD) return there;
    unsigned flags = CU_STREAM_NON_BLOCKING;
    if (calls.cuStreamGetFlags != nullptr) calls.cuStreamGetFlags(handle, &flags);
    const CUcontext part = driver::context_of(calls, handle);
    CUcontext context = part;
    CUgreenCtx green = nullptr;
    if (calls.cuStreamGetCtx_v2 != nullptr && !driver::is_default(handle) &&
        calls.cuStreamGetCtx_v2(handle, &context, &green) != CUDA_SUCCESS) {
        context = part;
    }
    const bool ordered = (flags & CU_STREAM_NON_BLOCKING) == 0 && handle != CU_STREAM_LEGACY;
    const bool blocking = ordered && !is_default;
    Client& user = all.all[static_cast<std::size_t>(client.index)];
    bool is_new = false;
    const auto add = [&] {
        const Held ordering(user.ordering);
        if (blocking) count_defaults(all, user);
        const Held held(all.streaming);
        Stream* added = all.streams.add(
            handle,
            [&](Stream& stream) {
                is_new = true;
                stream.handle = handle;
                stream.context = context;
                stream.part = part;
                stream.calls = &calls;
                stream.maker = maker;
                stream.user = client.index;
                stream.ordered_by.store(blocking ? client.index : kNobody);
                stream.blocking = blocking;
                stream.ordered = ordered;
                stream.of_first.store(false);
                stream.joining.store(0);
                stream.pending.store(0);
                stream.given.store(blocking && maker == kNobody ? 1 : 0);  // before
                stream.recorded = stream.joined = 0;
                stream.used_by.store(user_bit);
                stream.event = nullptr;
                stream.sms = 0;
                stream.duration_ns = 0;
                stream.guessed = 0;
                stream.vague = false;
            },
            [](const Stream&) { return false; });
        if (blocking && !is_new) user.blocking.fetch_sub(1);
        return added;
    };
    there = add();
    if (there == nullptr) has_no_room(all, user, blocking);
    return there;
}

int priority_of(const Client& client, const Calls& calls) {
    int least = 0;
    int greatest = 0;
    if (calls.cuCtxGetStreamPriorityRange != nullptr) calls.cuCtxGetStreamPriorityRange(&least, &greatest);
    return client.index == 0 ? greatest : least;
}

namespace {

// What blocking streams were given before comes before all that it is given.
CUstream make_default(Engine& all, Client& client, const Calls& calls, CUcontext context) {
    const Held held(client.making);
    if (CUstream there = default_in(client, context)) return there;
    for (Client::Default& one : client.defaults) {
        if (one.context.load(kRelaxed) != nullptr) continue;
        CUstream made = nullptr;
        if (calls.cuStreamCreateWithPriority(&made, CU_STREAM_DEFAULT, priority_of(client, calls)) != CUDA_SUCCESS)
            return nullptr;
        if (entry_of(all, client, calls, made, client.index, true) == nullptr) {
            if (calls.cuStreamDestroy_v2 != nullptr) calls.cuStreamDestroy_v2(made);
            return nullptr;  // the driver's own keeps the order by itself
        }
        one.stream = made;
        one.calls = &calls;
        one.settled.store(0);
        one.context.store(context, std::memory_order_release);
        unsettle(all);
        return made;
    }
    return nullptr;
}

}  // namespace

CUstream stream_of(Client& client, const Calls& calls, CUstream stream, bool per_thread) {
    if (stream == nullptr && per_thread) return CU_STREAM_PER_THREAD;
    if (stream != nullptr && stream != CU_STREAM_LEGACY) return stream;
    if (client.per_thread.load(std::memory_order_acquire) != 0) return stream;  // that one knows threads' own streams
    CUcontext context = nullptr;
    if (calls.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return stream;
    Engine& all = here();
    CUstream there = default_in(client, context);
    if (there == nullptr) there = make_default(all, client, calls, context);
    if (there == nullptr) return stream;
    settle_if_needed(all);
    return there;
}

void made_stream(const Client& client, const Calls& calls, CUstream stream) {
    entry_of(here(), client, calls, stream, client.index);
}

void made_between(const Calls& calls, CUstream stream) {
    Engine& all = here();
    if (!all.processes && own_client > 0) made_stream(all.all[own_client - 1], calls, stream);
}

void forget_stream(CUstream stream) {
    Engine& all = here();
    all.gone.fetch_add(1);
    Stream* there = all.streams.find(stream);
    if (there == nullptr) return;
    const Calls& calls = *there->calls;
    CUevent event = nullptr;
    {
        const int by = there->ordered_by.load();
        const Held ordered(all.all[by & 15].ordering);  // its client may order its streams in another thread
        const Held held(all.streaming);
        if (all.streams.find(stream) != there) return;
        if (there->blocking) all.all[there->ordered_by.load() & 15].blocking.fetch_sub(1);
        event = std::exchange(there->event, nullptr);
        all.streams.remove(stream);
    }
    if (event != nullptr && calls.cuEventDestroy_v2 != nullptr) calls.cuEventDestroy_v2(event);
}

void forget_context(CUcontext context) {
    Engine& all = here();
    all.kernels.forget();
    all.gone.fetch_add(1);
    for (Client& client : all.all) {
        const Held held(client.making);
        for (Client::Default& one : client.defaults) {
            if (one.context.load(kRelaxed) == context) one.context.store(nullptr, std::memory_order_release);
        }
    }
    for (Client& client : all.all) {
        client.legacy.forget(context);
        client.context.forget(context);
    }
    for (Engine::Followed& one : all.followed) {
        if (one.context.load() != context) continue;
        one.context.store(nullptr);
        one.event.store(nullptr);
    }
    forget_flights(all, context);
    forget_logged(all, context);
    const Held held(all.streaming);
    all.streams.each([&](const void* key, Stream& stream) {
        if (stream.context != context) return;
        if (stream.blocking) all.all[stream.ordered_by.load() & 15].blocking.fetch_sub(1);
        all.streams.remove(key);
    });
}

// Its streams are of no use any more, and those that are ours would be left behind.
void forget_green(const Calls& calls, CUcontext part) {
    Engine& all = here();
    std::array<CUstream, kClients> ours{};
    std::size_t count = 0;
    for (Client& client : all.all) {
        const Held held(client.making);
        for (Client::Default& one : client.defaults) {
            if (one.context.load(kRelaxed) != part) continue;
            one.context.store(nullptr, std::memory_order_release);
            ours[count++] = one.stream;
        }
    }
    all.streams.each([&](const void* key, Stream& stream) {
        if (stream.part == part && stream.context != part) forget_stream(static_cast<CUstream>(const_cast<void*>(key)));
    });
    for (std::size_t index = 0; index < count && calls.cuStreamDestroy_v2 != nullptr; ++index)
        calls.cuStreamDestroy_v2(ours[index]);
}

// An event for a stream, in a context that stays where that of the stream is a part of it. Another one may be current:
// copies and fills go to streams of any.
CUresult make_event(const Stream& stream, unsigned flags, CUevent& event) {
    CUcontext current = nullptr;
    const bool moves = stream.calls->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != stream.context &&
                       stream.calls->cuCtxSetCurrent(stream.context) == CUDA_SUCCESS;
    const CUresult result = stream.calls->cuEventCreate(&event, flags);
    if (moves) stream.calls->cuCtxSetCurrent(current);
    return result;
}

// Of blocking streams without an entry nobody can tell what they were given: the driver's default stream orders all.
void order_unknown(Owed Engine::* given) {
    Engine& all = here();
    Owed& before = all.*given;
    const std::uint64_t until = before.given();
    if (!all.crowded.load(std::memory_order_acquire) || !before.any()) return;
    unsettle(all);
    settle(all);
    if (!all.unsettled.any()) before.is_done(until);
}

void gave_ordered(Stream* stream) {
    Engine& all = here();
    if (stream != nullptr) stream->given.fetch_add(1);
    if (!all.crowded.load(std::memory_order_acquire)) return;
    if (stream == nullptr) all.given_unknown.give();
    if (stream != nullptr && !stream->blocking) all.given_defaults.give();
}

// The client's default stream waits for its blocking streams, and those for it, as the legacy one would have it.
void order_with_default(Client& client, Stream& stream, const Calls& calls) {
    const auto record = [&](Stream& of) {
        const std::uint64_t given = of.given.load();
        if (of.recorded == given && of.event != nullptr) return true;
        if (of.event == nullptr && make_event(of, CU_EVENT_DISABLE_TIMING, of.event) != CUDA_SUCCESS) return false;
        if (calls.cuEventRecord(of.event, of.handle) != CUDA_SUCCESS) return false;
        of.recorded = given;
        return true;
    };
    if (!stream.ordered) return;  // the lock may be held for long, as where the driver waits for room in a stream
    Engine& all = here();
    if (!stream.blocking) order_unknown(&Engine::given_unknown);
    CUstream handle = default_in(client, stream.part);
    const Held held(client.ordering);
    if (stream.handle == handle) {
        all.streams.each([&](const void*, Stream& one) {
            if (one.ordered_by.load() != client.index || one.part != stream.part) return;
            if (one.recorded == one.given.load() || !record(one)) return;
            calls.cuStreamWaitEvent(handle, one.event, 0);
        });
    } else if (stream.ordered_by.load() == client.index) {
        Stream* common = handle != nullptr ? all.streams.find(handle) : nullptr;
        if (common != nullptr && common->given.load() != stream.joined && record(*common)) {
            calls.cuStreamWaitEvent(stream.handle, common->event, 0);
            stream.joined = common->recorded;
        }
    }
}

// Another client gives work to it: from now on it is in order with that one's default stream, and all else was before.
void take_over(Client& client, Stream& stream) {
    Engine& all = here();
    unsettle(all);
    settle(all);
    const Held ordering(client.ordering);
    const Held held(all.streaming);
    const int by = stream.ordered_by.load();
    if (by == kNobody || by == client.index || all.streams.find(stream.handle) != &stream) return;
    all.all[by & 15].blocking.fetch_sub(1);
    count_defaults(all, client);
    stream.recorded = stream.given.load();
    stream.joined = 0;
    stream.ordered_by.store(client.index, std::memory_order_release);
}

// The thread gives work to its own default stream.
void use_per_thread(Client& client) {
    const auto thread = static_cast<std::int32_t>(call(SYS_gettid));
    std::int32_t known = 0;
    if (!client.per_thread.compare_exchange_strong(known, thread) && known != thread) client.per_thread.store(-1);
}

// A thread's own default stream can be named by that thread alone, so that from its first work on the legacy stream is
// used as it is. What the client's default stream was given before comes before all that follows on either.
void order_per_thread(Client& client, const Calls& calls) {
    if (client.mixes.exchange(true)) return;
    CUevent event = nullptr;
    if (calls.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
    calls.cuEventRecord(event, CU_STREAM_LEGACY);
    if (calls.cuEventDestroy_v2 != nullptr) calls.cuEventDestroy_v2(event);
}

// Whether what client 0 gave a thread's own stream is done is told by an event, which any thread can ask about.
void follow_first(const Calls& calls) {
    static constinit thread_local Engine::Followed* place = nullptr;
    static constinit thread_local CUevent event = nullptr;
    CUcontext context = nullptr;
    if (calls.cuCtxGetCurrent(&context) != CUDA_SUCCESS) return;
    Engine& all = here();
    if (place == nullptr || place->context.load() != context || place->event.load() != event) {
        place = nullptr;
        for (Engine::Followed& one : all.followed) {
            CUevent there = one.event.load();
            if (there == nullptr) {
                CUevent made = nullptr;
                if (calls.cuEventCreate(&made, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return;
                if (one.event.compare_exchange_strong(there, made)) {
                    one.context.store(context);
                    one.calls.store(&calls, std::memory_order_release);
                    place = &one;
                    event = made;
                    break;
                }
                if (calls.cuEventDestroy_v2 != nullptr) calls.cuEventDestroy_v2(made);
            } else if (one.context.load() == context && calls.cuEventQuery(there) == CUDA_SUCCESS) {
                place = &one;  // of a thread that has ended, most likely
                event = there;
                break;
            }
        }
        if (place == nullptr) return;
    }
    if (calls.cuEventRecord(event, CU_STREAM_PER_THREAD) == CUDA_SUCCESS) {
        all.first_per_thread.store(0, std::memory_order_release);
    }
}

CUresult of_defaults(const Calls& calls, bool waits) {
    CUcontext context = nullptr;
    if (calls.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return CUDA_SUCCESS;
    for (Client& client : here().all) {
        CUstream stream = default_in(client, context);
        if (stream == nullptr) continue;
        const CUresult result = waits ? calls.cuStreamSynchronize(stream) : calls.cuStreamQuery(stream);
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

Stream* order_flushed(Client& client, const Calls& calls, CUstream stream) {
    if (stream == CU_STREAM_PER_THREAD) {
        use_per_thread(client);
        if (client.index == 0) here().first_per_thread.store(1, std::memory_order_release);
        order_per_thread(client, calls);
        gives(here(), nullptr, true);
    }
    return order_default(client, calls, stream);
}

Stream* order_default(Client& client, const Calls& calls, CUstream stream) {
    Stream* there = entry_of(here(), client, calls, stream, kNobody);
    gives(here(), there, false);
    order(client, there, calls);
    return there;
}

}  // namespace runlist::operations
