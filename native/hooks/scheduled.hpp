// Where several clients share a GPU operation by operation: what each call is to that (operations.inc), before any
// other behaviour of its hook, which then is what goes to the driver, now or from the engine's thread.
#pragma once

#include <memory>
#include <tuple>

#include "hooks/context.hpp"
#include "hooks/how.hpp"

namespace runlist::hooks {

inline operations::Shape shape_of(const CUlaunchConfig* config) {
    if (config == nullptr) return {};
    return {.blocks = std::uint64_t{config->gridDimX} * config->gridDimY * config->gridDimZ,
            .threads = config->blockDimX * config->blockDimY * config->blockDimZ,
            .shared = config->sharedMemBytes};
}

// Of a kernel's launch: its grid, its blocks and their shared memory are its first numbers.
template <typename... Arguments>
operations::Shape shape_of_launch(Arguments... arguments) {
    if constexpr (kTakes<const CUlaunchConfig*, Arguments...>) {
        return shape_of(first_of<const CUlaunchConfig*>(arguments...));
    } else {
        unsigned numbers[7]{};
        int count = 0;
        const auto look = [&](auto argument) {
            if constexpr (std::is_same_v<decltype(argument), unsigned>) {
                if (count < 7) numbers[count++] = argument;
            }
        };
        (look(arguments), ...);
        return {.blocks = std::uint64_t{numbers[0]} * numbers[1] * numbers[2],
                .threads = numbers[3] * numbers[4] * numbers[5],
                .shared = numbers[6]};
    }
}

template <typename... Arguments>
CUresult run_plain(const operations::Record& record) {
    const auto& packed = *static_cast<const std::tuple<Arguments...>*>(record.rest());
    return std::apply(reinterpret_cast<CUresult (*)(Arguments...)>(record.real), packed);
}

// A kernel's parameters where the caller's may be gone: what it was launched with, packed behind its arguments.
struct Parameters {
    int count = -1;
    std::uint16_t sizes[operations::Kernel::kParameters];
    std::size_t extra_bytes = 0;  // of one buffer, instead
    const void* extra = nullptr;
    bool buffered = false;
    const CUlaunchConfig* config = nullptr;

    // False where they cannot be copied.
    bool look(const operations::Calls& calls, CUfunction function, void** values, void** buffer);
    bool look(const CUlaunchConfig* launch);
    std::size_t bytes() const;
    void pack(std::byte* to, CUstream stream, void** values) const;
};

// How they lie: this, the attributes, then the values, each on its own 16 bytes.
struct Packed {
    int count;
    bool buffered;
    std::size_t extra_bytes;
    CUlaunchConfig config;
};

// Where packed parameters lie, as the driver takes them.
struct Unpacked {
    explicit Unpacked(const std::byte* from);
    void* values[operations::Kernel::kParameters + 1];
    void* extra[5];
    std::size_t extra_bytes;
    CUlaunchConfig config;
    bool buffered;
};

constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

template <typename... Arguments>
CUresult run_kernel(const operations::Record& record) {
    const auto& packed = *static_cast<const std::tuple<Arguments...>*>(record.rest());
    Unpacked there(static_cast<const std::byte*>(record.rest()) + rounded(sizeof(packed)));
    int pointers = 0;
    const auto replaced = [&](auto argument) {
        if constexpr (std::is_same_v<decltype(argument), void**>) {
            const bool extra = pointers++ != 0;
            if (extra) return there.buffered ? there.extra : nullptr;
            return there.buffered ? nullptr : static_cast<void**>(there.values);
        } else if constexpr (std::is_same_v<decltype(argument), const CUlaunchConfig*>) {
            return static_cast<const CUlaunchConfig*>(&there.config);
        } else {
            return argument;
        }
    };
    const auto call = [&](const Arguments&... arguments) {
        std::tuple<Arguments...> given{replaced(arguments)...};  // in order
        return std::apply(reinterpret_cast<CUresult (*)(Arguments...)>(record.real), given);
    };
    return std::apply(call, packed);
}

// Whether what an operation reads and writes may be left to the driver when the call has returned.
template <typename... Arguments>
bool is_all_pinned(const operations::Calls& calls, Arguments... arguments) {
    const auto pinned = [&](auto argument) {
        using Type = decltype(argument);
        if constexpr (std::is_same_v<Type, CUdeviceptr>) {
            return operations::is_pinned(calls, reinterpret_cast<const void*>(argument));
        } else if constexpr (std::is_same_v<Type, void*> || std::is_same_v<Type, const void*>) {
            return operations::is_pinned(calls, argument);
        } else {
            return true;
        }
    };
    return (pinned(arguments) && ...);
}

// Queues it; false where that cannot be.
template <How how, typename... Arguments>
[[gnu::noinline]] bool queue(operations::Doing& doing, const operations::Calls& calls, CUstream stream,
                             CUresult (*real)(Arguments...), Arguments... arguments) {
    using Tuple = std::tuple<Arguments...>;
    Parameters parameters;
    std::size_t bytes = sizeof(Tuple);
    if constexpr (how == How::kCopy) {
        if (!is_all_pinned(calls, arguments...)) return false;
    }
    if constexpr (how == How::kKernel) {
        void** given[2]{};
        int pointers = 0;
        const auto look = [&](auto argument) {
            if constexpr (std::is_same_v<decltype(argument), void**>) given[pointers++] = argument;
        };
        (look(arguments), ...);
        if (!parameters.look(calls, first_of<CUfunction>(arguments...), given[0], given[1])) return false;
        if (kTakes<const CUlaunchConfig*, Arguments...> &&
            !parameters.look(first_of<const CUlaunchConfig*>(arguments...))) {
            return false;
        }
        bytes = rounded(sizeof(Tuple)) + parameters.bytes();
    }
    operations::Record* record = doing.reserve(bytes);
    if (record == nullptr) return false;
    const auto on = [&](auto argument) {
        if constexpr (std::is_same_v<decltype(argument), CUstream>)
            return stream;
        else
            return argument;
    };
    std::construct_at(static_cast<Tuple*>(record->rest()), on(arguments)...);
    record->real = reinterpret_cast<void*>(real);
    if constexpr (how == How::kKernel) {
        void** values = first_of<void**>(arguments...);
        parameters.pack(static_cast<std::byte*>(record->rest()) + rounded(sizeof(Tuple)), stream, values);
        record->run = run_kernel<Arguments...>;
    } else {
        record->run = run_plain<Arguments...>;
    }
    doing.commit(*record, how == How::kRecord ? first_of<CUevent>(arguments...) : nullptr);
    return true;
}

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
        if (calls.cuCtxFromGreenCtx != nullptr && calls.cuCtxFromGreenCtx(&part, arguments...) == CUDA_SUCCESS)
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
        return real(arguments...);
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
        if (stream != named && !per_thread && operations::has_legacy(*client, calls)) {
            const CUresult own = call_on(stream, real, arguments...);
            return own == CUDA_SUCCESS ? real(arguments...) : own;
        }
        return call_on(stream, real, arguments...);
    }
    const CUresult late = operations::flush(*client);
    CUresult result = CUDA_SUCCESS;
    {
        const operations::Inside inside;
        if constexpr (how == How::kMakeStream) {
            const auto* stream = first_of<CUstream*>(arguments...);
            result = make_stream(calls, operations::priority_of(*client, calls), real, arguments...);
            if (result == CUDA_SUCCESS) operations::made_stream(*client, calls, *stream);
            return result;
        }
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
            if (how == How::kFlush && !is_captured) {
                operations::order_flushed(*client, calls, stream);
            } else if (mapped && !is_captured) {
                operations::order_default(*client, calls, stream);
            }
            result = call_on(stream, real, arguments...);
            if (how == How::kFlush && !is_captured && client->index == 0 && stream == CU_STREAM_PER_THREAD) {
                operations::follow_first(calls);
            }
            if (how == How::kAwaitStream && mapped) operations::await_legacy(*client, calls);
        } else {
            result = call_as_it_is<how>(row, real, arguments...);
        }
    }
    if constexpr (how == How::kAwaitStream || how == How::kAwaitEvent || how == How::kAwaitContext) {
        operations::stretch_ended(*client, how == How::kAwaitContext || per_thread);
    }
    return result == CUDA_SUCCESS ? late : result;
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
