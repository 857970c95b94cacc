// Where several clients share a GPU operation by operation: what each call is to that (operations.inc), before any
// other behaviour of its hook, which then is what goes to the driver, now or from the engine's thread.
#pragma once

#include "hooks/context.hpp"
#include "hooks/queued.hpp"

namespace runlist::hooks {

constexpr bool is_deferrable(How how) {
    return how == How::kKernel || how == How::kGraph || how == How::kCopy || how == How::kFill || how == How::kRecord;
}

// Whether there are graphs that do that with events. Such a launch is as a record that others may know of, or a wait.
inline bool has_graph_events(unsigned what) {
    return (operations::graph_events.load(std::memory_order_relaxed) & what) != 0;
}

// The event that a launch records by an attribute; nullptr for none.
inline CUevent event_of(const CUlaunchAttribute& attribute) {
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) return attribute.value.programmaticEvent.event;
#if CUDA_VERSION >= 12030
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) return attribute.value.launchCompletionEvent.event;
#endif
    return nullptr;
}

// What records events does so after others whose records are still queued, and what waits for some after what they are
// of.
template <How how, typename... Arguments>
[[gnu::always_inline]] inline void await_records_of_others(const operations::Client* client, Arguments... arguments) {
    if constexpr (how == How::kRecord) operations::await_event_of_others(client, first_of<CUevent>(arguments...));
    if constexpr (how == How::kGraph) {
        if (has_graph_events(operations::kGraphWaits)) [[unlikely]]
            operations::flush_others(client);
        if (has_graph_events(operations::kGraphRecords)) [[unlikely]]
            operations::await_events_of_others(client);
    }
    if constexpr (how == How::kKernel && kTakes<const CUlaunchConfig*, Arguments...>) {
        const auto* config = first_of<const CUlaunchConfig*>(arguments...);
        if (config == nullptr || config->attrs == nullptr) return;
        for (unsigned index = 0; index < config->numAttrs; ++index) {
            if (const CUevent event = event_of(config->attrs[index])) operations::await_event_of_others(client, event);
        }
    }
}

// Work of a client: now, later, or when it is its turn. Part of its one caller, which would hand on all arguments.
template <How how, typename... Arguments>
[[gnu::always_inline]] inline CUresult do_work(const operations::Call& made, operations::Client& client,
                                               const operations::Calls& calls, int row, bool per_thread, CUstream named,
                                               CUresult (*real)(Arguments...), Arguments... arguments) {
    const CUstream stream = operations::stream_of(client, calls, named, per_thread);
    if (is_captured_now(row, stream)) {
        // Its record before, which is none of the capture, would come after this one.
        if constexpr (how == How::kRecord) operations::await_record(first_of<CUevent>(arguments...));
        const operations::Inside inside;
        return call_on(stream, real, arguments...);
    }
    operations::Doing doing(made, client, calls, kind_of(how), stream, stream == CU_STREAM_PER_THREAD,
                            first_of<CUfunction>(arguments...));
    if constexpr (how == How::kKernel) {
        if (operations::is_logging()) doing.is_so_large(shape_of_launch(arguments...));
    }
    if (!doing.goes_now()) {
        if constexpr (is_deferrable(how)) {
            const bool shared = (how == How::kRecord && operations::is_shared(first_of<CUevent>(arguments...))) ||
                                (how == How::kGraph && has_graph_events(~0U));
            if (!shared && doing.can_be_queued() && queue<how>(doing, calls, stream, real, arguments...))
                return CUDA_SUCCESS;
        }
        doing.wait_for_turn();
    }
    const operations::Inside inside;
    doing.begin();
    const CUresult result = call_on(stream, real, arguments...);
    doing.end(result);
    if constexpr (!kTakes<CUstream, Arguments...> && !kTakes<const CUlaunchConfig*, Arguments...>) {
        if (!per_thread) client.legacy.give();
        if (how == How::kTurn && result == CUDA_SUCCESS) return operations::take_error(client);
    }
    return result;
}

constexpr bool takes_others(How how) {
    return how == How::kFlushOthers || how == How::kUnload || how == How::kEndContext || how == How::kEndGreen;
}

// What a call that ends contexts names, and whether that has ended: a primary one when it is released for the last
// time.
inline CUcontext named_context(int, CUcontext context) { return context; }
inline CUcontext named_context(int row, CUdevice device) { return primary_of(row, device); }
inline bool has_ended(int, CUcontext, CUcontext) { return true; }
inline bool has_ended(int row, CUdevice device, CUcontext primary) { return primary_of(row, device) != primary; }

// Whether a call names more streams than one.
template <typename... Arguments>
constexpr bool kNamesTwo = (std::is_same_v<CUstream, Arguments> + ... + 0) > 1;

// A call with the streams that a client means by those that it names.
template <typename... Arguments>
CUresult call_on_each(operations::Client& client, const operations::Calls& calls, bool per_thread,
                      CUresult (*real)(Arguments...), Arguments... arguments) {
    const auto meant = [&](auto argument) {
        if constexpr (std::is_same_v<decltype(argument), CUstream>) {
            return operations::stream_of(client, calls, argument, per_thread);
        } else {
            return argument;
        }
    };
    return real(meant(arguments)...);
}

// A stream is made with the priority of its client.
template <typename... Arguments>
CUresult make_stream(const operations::Calls& calls, int priority, CUresult (*real)(Arguments...),
                     Arguments... arguments) {
    if constexpr (!kTakes<int, Arguments...>) {
        return calls.cuStreamCreateWithPriority(arguments..., priority);
    } else {
        const auto given = [&](auto argument) {
            if constexpr (std::is_same_v<decltype(argument), int>) {
                return priority;
            } else {
                return argument;
            }
        };
        return real(given(arguments)...);
    }
}

// A call with its own stream; nobody asks about streams while a capture begins, or a context may end.
template <How how, typename... Arguments>
CUresult call_as_it_is(int row, CUresult (*real)(Arguments...), Arguments... arguments) {
    if constexpr (how == How::kCapture) {
        const operations::NotAsked none;
        return real(arguments...);
    } else if constexpr (how == How::kEndContext) {
        const operations::NotAsked none;
        const CUcontext context = named_context(row, arguments...);
        const CUresult result = real(arguments...);
        if (result == CUDA_SUCCESS && context != nullptr && has_ended(row, arguments..., context))
            operations::forget_context(context);
        return result;
    } else if constexpr (how == How::kEndGreen) {
        const operations::NotAsked none;
        const operations::Calls& calls = *operation_calls(row);
        CUcontext part = nullptr;
        if (calls.cuCtxFromGreenCtx != nullptr && calls.cuCtxFromGreenCtx(&part, arguments...) == CUDA_SUCCESS &&
            part != nullptr)
            operations::forget_green(calls, part);
        return real(arguments...);
    } else {
        return real(arguments...);
    }
}

// When a call is over that may have given the driver's default stream something on a client's behalf.
class GivesLegacy {
  public:
    explicit GivesLegacy(bool gives) : gives_(gives) {}
    ~GivesLegacy() {
        if (gives_) operations::gave_legacy();
    }
    GivesLegacy(const GivesLegacy&) = delete;
    GivesLegacy& operator=(const GivesLegacy&) = delete;

  private:
    bool gives_;
};

// A call while there are no clients, but were: what they gave comes first, and what ends is heard of.
template <How how, typename... Arguments>
[[gnu::noinline, gnu::cold]] CUresult between(CUresult (*real)(Arguments...), int row, bool per_thread,
                                              Arguments... arguments);

// A call while clients share the GPU. One for all functions of a type and a way, as it is large.
template <How how, typename... Arguments>
[[gnu::noinline, gnu::cold]] CUresult schedule(CUresult (*real)(Arguments...), int row, bool per_thread,
                                               Arguments... arguments) {
    if (operations::inside || in_hook) return real(arguments...);
    const operations::Calls* whole = operation_calls(row);
    if (whole == nullptr) return real(arguments...);
    const operations::Call made;
    if (!made.runs()) return between<how>(real, row, per_thread, arguments...);
    const operations::Calls& calls = *whole;
    const CUstream named = Named(arguments...).stream;
    operations::Client* client = operations::client_of(named);
    if constexpr (how == How::kAskEvent || how == How::kElapsed) {
        const auto queued = [](auto argument) {
            if constexpr (std::is_same_v<decltype(argument), CUevent>) return operations::is_queued(argument);
            return false;
        };
        if ((queued(arguments) || ...)) return CUDA_ERROR_NOT_READY;
        const CUresult result = real(arguments...);
        if (how == How::kElapsed || client == nullptr || result != CUDA_SUCCESS) return result;
        return operations::take_error(*client);
    }
    await_records_of_others<how>(client, arguments...);
    if constexpr (how == How::kTurn || how == How::kWait) {
        if constexpr (how == How::kWait) {
            if (client != nullptr) operations::flush(*client);
            operations::await_event(client, first_of<CUevent>(arguments...));
        }
        if (client != nullptr) return do_work<how>(made, *client, calls, row, per_thread, named, real, arguments...);
    }
    constexpr bool kNamesStream = kTakes<CUstream, Arguments...> || kTakes<const CUlaunchConfig*, Arguments...>;
    const bool ordered_with_all = !kNamesStream || operations::is_default(named);
    const bool awaits_all = ordered_with_all && how != How::kAwaitEvent && how != How::kMakeStream;
    operations::before(client, named, awaits_all);
    const GivesLegacy legacy(client == nullptr && awaits_all);
    if constexpr (takes_others(how)) operations::flush_others(client);
    if constexpr (how == How::kEndEvent || how == How::kShareEvent) {
        const CUevent event = first_of<CUevent>(arguments...);
        how == How::kShareEvent ? operations::share_event(event) : operations::forget_shared(event);
        operations::await_event(client, event);
        return real(arguments...);
    }
    if constexpr (how == How::kOpenEvent) {
        const CUresult result = real(arguments...);
        if (result == CUDA_SUCCESS) operations::share_event(*first_of<CUevent*>(arguments...));
        return result;
    }
    if constexpr (how == How::kAwaitEvent) operations::await_event(client, first_of<CUevent>(arguments...));
    if (client == nullptr) {
        if constexpr (is_deferrable(how) || how == How::kTurn || how == How::kWait || how == How::kFlush)
            operations::gives(calls, named, per_thread);
        if constexpr (how == How::kUnload) operations::forget_kernels();
        if constexpr (how == How::kEndStream) operations::forget_stream(named);
        if constexpr (how == How::kAwaitStream || how == How::kAskStream) {
            if (!per_thread && named != CU_STREAM_PER_THREAD && operations::is_default(named)) {
                const operations::Inside inside;
                const CUresult result = operations::of_defaults(calls, how == How::kAwaitStream);
                if (result != CUDA_SUCCESS) return result;
            }
        }
        return call_as_it_is<how>(row, real, arguments...);
    }
    if constexpr (how == How::kAskStream) {
        const CUstream stream = operations::stream_of(*client, calls, named, per_thread);
        if (operations::is_queued(*client, stream)) return CUDA_ERROR_NOT_READY;
        CUresult asked = call_on(stream, real, arguments...);
        if (asked == CUDA_SUCCESS && stream != named && !per_thread && operations::has_legacy(*client, calls))
            asked = real(arguments...);
        return asked == CUDA_SUCCESS ? operations::take_error(*client) : asked;
    }
    if constexpr (how == How::kMakeStream) {
        const operations::Inside inside;
        const CUresult made_one = make_stream(calls, operations::priority_of(*client, calls), real, arguments...);
        if (made_one == CUDA_SUCCESS) operations::made_stream(*client, calls, *first_of<CUstream*>(arguments...));
        return made_one;
    }
    operations::flush(*client);
    CUresult result = CUDA_SUCCESS;
    {
        const operations::Inside inside;
        if constexpr (how == How::kUnload) operations::forget_kernels();
        if constexpr (how == How::kEndStream) operations::forget_stream(named);
        if constexpr (how == How::kAwaitContext) {
            if (operations::knows_streams(*client, calls)) {
                result = operations::synchronize(*client, calls);
            } else {
                operations::WholeContext whole(*client, calls);
                result = real(arguments...);
                if (result == CUDA_SUCCESS) whole.is_idle();
            }
        } else if constexpr (kNamesTwo<Arguments...>) {
            result = call_on_each(*client, calls, per_thread, real, arguments...);
        } else if constexpr (kTakes<CUstream, Arguments...> && how != How::kCapture) {
            const CUstream stream = operations::stream_of(*client, calls, named, per_thread);
            const bool mapped = stream != named && !per_thread;
            const bool is_captured = (mapped || how == How::kFlush) && is_captured_now(row, stream);
            operations::Stream* flushed = nullptr;
            if (how == How::kFlush && !is_captured) {
                flushed = operations::order_flushed(*client, calls, stream);
            } else if (mapped && !is_captured) {
                operations::order_default(*client, calls, stream);
            }
            result = call_on(stream, real, arguments...);
            if (how == How::kFlush && !is_captured) operations::gave(*client, flushed);
            if (how == How::kFlush && !is_captured && client->index == 0 && stream == CU_STREAM_PER_THREAD) {
                operations::follow_first(calls);
            }
            if (how == How::kAwaitStream && mapped) operations::await_legacy(*client, calls);
        } else {
            result = call_as_it_is<how>(row, real, arguments...);
        }
    }
    // Of what failed in the queue those are told that wait, or ask whether it is done: all else would seem to have
    // failed.
    if constexpr (how == How::kAwaitStream || how == How::kAwaitEvent || how == How::kAwaitContext) {
        operations::stretch_ended(*client, how == How::kAwaitContext || per_thread);
        if (result == CUDA_SUCCESS) return operations::take_error(*client);
    }
    return result;
}

// The usual way of what a client gives the GPU, out of the way of all that is seldom called: built for speed.
template <How how, typename... Arguments>
[[gnu::noinline]] CUresult schedule_work(CUresult (*real)(Arguments...), int row, bool per_thread,
                                         Arguments... arguments) {
    if (operations::inside || in_hook) return real(arguments...);
    const CUstream named = Named(arguments...).stream;
    const operations::Calls* calls = operation_calls(row);
    if (calls == nullptr) return real(arguments...);
    const operations::Call made;
    if (!made.runs()) return between<how>(real, row, per_thread, arguments...);
    operations::Client* client = operations::client_of(named);
    if (client == nullptr) {
        if (how == How::kRecord || operations::is_default(named))
            return schedule<how>(real, row, per_thread, arguments...);
        operations::before(nullptr, named, false);
        operations::gives(*calls, named, false);
        await_records_of_others<how>(nullptr, arguments...);
        return real(arguments...);
    }
    await_records_of_others<how>(client, arguments...);
    return do_work<how>(made, *client, *calls, row, per_thread, named, real, arguments...);
}

template <How how, typename... Arguments>
[[gnu::noinline, gnu::cold]] CUresult between(CUresult (*real)(Arguments...), int row, bool per_thread,
                                              Arguments... arguments) {
    if (operations::inside || in_hook || operation_calls(row) == nullptr) return real(arguments...);
    const operations::Call made;
    if (made.runs()) return schedule<how>(real, row, per_thread, arguments...);
    operations::settle_if_needed();
    if constexpr (how == How::kEndStream) operations::forget_stream(Named(arguments...).stream);
    if constexpr (how == How::kEndEvent) operations::forget_shared(first_of<CUevent>(arguments...));
    if constexpr (how == How::kCapture || how == How::kEndContext || how == How::kEndGreen) {
        const operations::Inside inside;
        return call_as_it_is<how>(row, real, arguments...);
    }
    const CUresult result = real(arguments...);
    if constexpr (how == How::kMakeStream)
        if (result == CUDA_SUCCESS) operations::made_between(*operation_calls(row), *first_of<CUstream*>(arguments...));
    if constexpr (how == How::kShareEvent)
        if (result == CUDA_SUCCESS) operations::share_event(first_of<CUevent>(arguments...));
    if constexpr (how == How::kOpenEvent)
        if (result == CUDA_SUCCESS) operations::share_event(*first_of<CUevent*>(arguments...));
    if constexpr (how == How::kAwaitStream || how == How::kAwaitEvent || how == How::kAwaitContext)
        if (result == CUDA_SUCCESS) return operations::error_of_before();
    return result;
}

// Without such clients: nothing but the test, and no frame.
template <typename Behaviour, Id id, int row, typename Type = typename Function<id>::Type>
struct Scheduled;

template <typename Behaviour, Id id, int row, typename... Arguments>
struct Scheduled<Behaviour, id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        if (operations::on()) [[unlikely]] {
            constexpr bool kPerThread = is_per_thread(Function<id>::kName);
            if constexpr (is_deferrable(kHow<id>))
                return schedule_work<kHow<id>>(&Behaviour::call, row, kPerThread, arguments...);
            else
                return schedule<kHow<id>>(&Behaviour::call, row, kPerThread, arguments...);
        }
        // Other processes may wait for an event also when there are clients at last.
        constexpr bool kShares = kHow<id> == How::kShareEvent || kHow<id> == How::kOpenEvent;
        if (operations::started() || (kShares && operations::prepare())) [[unlikely]]
            return between<kHow<id>>(&Behaviour::call, row, is_per_thread(Function<id>::kName), arguments...);
        return Behaviour::call(arguments...);
    }
};

template <typename Behaviour, Id id, int row>
constexpr auto scheduled() {
    if constexpr (library_of(id) != Library::kCuda) {
        return &Behaviour::call;
    } else if constexpr (kHow<id> == How::kNone) {
        return &Behaviour::call;
    } else {
        return &Scheduled<Behaviour, id, row>::call;
    }
}

template <typename Behaviour, Id id, int row>
inline constexpr auto kScheduled = scheduled<Behaviour, id, row>();

}  // namespace runlist::hooks
