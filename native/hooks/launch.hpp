// Work for the GPU, which is counted and waits for its turn under a compute cap, what waits for it, and what asks for
// device memory.
#pragma once

#include "activity/activity.hpp"
#include "activity/called.hpp"
#include "cap/gate.hpp"
#include "hooks/functions.hpp"
#include "hooks/outermost.hpp"
#include "operations/calls.hpp"
#include "rm/door.hpp"

namespace runlist::hooks {

// What the gate uses of the copy of libcuda in a row; who asks for it has a cap, and the region says so.
const cap::Calls& calls_of(int row);
const cap::Calls& calls_in(int row);                // for others than the gate
const operations::Calls* operation_calls(int row);  // what operations use; nullptr where something is missing
void set_calls(int row, const resolve::Object& copy);

// Says that queries, and the cap if there is one, are at work in this process, and begins to tell what it does.
void say_enforced();

// What is known of a launch by the types of its arguments: the stream that it names, the default stream if none, and
// what tells its kind of work apart.
struct Named {
    CUstream stream = nullptr;
    const void* work = nullptr;

    template <typename... Arguments>
    explicit Named(Arguments... arguments) {
        (look(arguments), ...);
    }

  private:
    template <typename Other>
    void look(const Other&) {}
    void look(CUstream given) { stream = given; }
    void look(CUfunction function) { work = function; }
    void look(CUgraphExec graph) { work = graph; }
    void look(const CUlaunchConfig* config) {
        if (config != nullptr) stream = config->hStream;
    }
};

// Whether the default stream of this form is the thread's own.
consteval bool is_per_thread(std::string_view name) { return name.ends_with("_ptsz") || name.ends_with("_ptds"); }

// Does what is left of counting a submission: the first of a stretch, or one that somebody waits to hear of.
[[gnu::noinline, gnu::cold]] void count_rest(activity::Own& own, activity::Left left, int row);

// Whether any stream captures.
[[gnu::always_inline]] inline bool any_capture() { return activity::captures.load(std::memory_order_relaxed) != 0; }

// Whether what a stream is given is captured into a graph, which makes it no work yet; also where that cannot be said.
[[gnu::noinline, gnu::cold]] bool is_captured(int row, CUstream stream, bool per_thread);

// The context of a stream.
CUcontext context_behind(int row, CUstream stream);

// Counts a submission that is made now.
inline void count(int row, CUstream stream, bool per_thread) {
    activity::Own* own = activity::telling();
    if (own == nullptr || (any_capture() && is_captured(row, stream, per_thread))) return;
    const activity::Left left = own->submit();
    if (left != activity::Left::kNothing) [[unlikely]]
        count_rest(*own, left, row);
}

// Calls a real function of a row when it is its turn. One for all functions of a type, as it is large. While it waits
// for its turn it is in no hook: a program may leave it by a long jump, as where a signal says that it took too long.
template <typename... Arguments>
[[gnu::noinline, gnu::cold]] CUresult call_in_turn(CUresult (*real)(Arguments...), int row, bool per_thread,
                                                   Arguments... arguments) {
    if (in_hook) return real(arguments...);
    const Named named(arguments...);
    cap::Turn turn(calls_of(row), named.stream, per_thread, named.work);
    const Outermost outermost;
    count(row, named.stream, per_thread);
    const CUresult result = real(arguments...);
    turn.launched(result == CUDA_SUCCESS);
    return result;
}

// Calls a real function of a row after what is left of counting it was done.
template <typename... Arguments>
[[gnu::noinline, gnu::cold]] CUresult call_counted(CUresult (*real)(Arguments...), int row, activity::Own* own,
                                                   activity::Left left, Arguments... arguments) {
    count_rest(*own, left, row);
    return real(arguments...);
}

// Calls a real function of a row while streams capture.
template <typename... Arguments>
[[gnu::noinline, gnu::cold]] CUresult call_beside_captures(CUresult (*real)(Arguments...), int row, bool per_thread,
                                                           Arguments... arguments) {
    count(row, Named(arguments...).stream, per_thread);
    return real(arguments...);
}

// Calls what a program was linked with. That may be another library's, which comes back to us by the driver's own
// function; no other row leads to a hook again.
template <typename... Arguments>
[[gnu::noinline]] CUresult call_linked(CUresult (*real)(Arguments...), bool per_thread, Arguments... arguments) {
    const Outermost outermost;
    if (outermost) count(kLinked, Named(arguments...).stream, per_thread);
    return real(arguments...);
}

// Calls a real function of a row: in its turn where there is a cap, and counted. No frame is needed for the usual case,
// so that the arguments stay where they are.
template <int row, typename... Arguments>
[[gnu::always_inline]] inline CUresult submit(CUresult (*real)(Arguments...), bool per_thread, Arguments... arguments) {
    if (cap::on()) [[unlikely]]
        return call_in_turn(real, row, per_thread, arguments...);
    activity::Own* own = activity::telling();
    if (own == nullptr || in_hook) return real(arguments...);
    if constexpr (row == kLinked) return call_linked(real, per_thread, arguments...);
    if (any_capture()) [[unlikely]]
        return call_beside_captures(real, row, per_thread, arguments...);
    const activity::Left left = own->submit();
    if (left != activity::Left::kNothing) [[unlikely]]
        return call_counted(real, row, own, left, arguments...);
    return real(arguments...);
}

template <Id id, int row, typename Type = typename Function<id>::Type>
struct Work;

template <Id id, int row, typename... Arguments>
struct Work<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        auto* function = real<id>(row);
        if (function == nullptr) [[unlikely]]
            return absent<CUresult>();
        return submit<row>(function, is_per_thread(Function<id>::kName), arguments...);
    }
};

// What has a stream capture what it is given.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct BeginCapture;

template <Id id, int row, typename... Arguments>
struct BeginCapture<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        const Outermost outermost;
        const CUresult result = call_real<id, row>(arguments...);
        if (outermost && result == CUDA_SUCCESS) activity::captures.fetch_add(1);
        return result;
    }
};

// What ends that. A capture that failed goes on until it is ended; an end that is refused may end it, too.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct EndCapture;

template <Id id, int row>
struct EndCapture<id, row, CUresult(CUstream, CUgraph*)> {
    static CUresult CUDAAPI call(CUstream stream, CUgraph* graph) {
        constexpr bool kPerThread = is_per_thread(Function<id>::kName);
        const Outermost outermost;
        const bool captured = outermost && any_capture() && is_captured(row, stream, kPerThread);
        const CUresult result = call_real<id, row>(stream, graph);
        if (captured && !is_captured(row, stream, kPerThread)) activity::captures.fetch_sub(1);
        return result;
    }
};

// Whether a wait answered with an error of work, after which its context is of no use.
constexpr bool is_failure(CUresult result) {
    return (result >= CUDA_ERROR_ILLEGAL_ADDRESS && result <= CUDA_ERROR_LAUNCH_FAILED) ||
           result == CUDA_ERROR_ECC_UNCORRECTABLE || result == CUDA_ERROR_NVLINK_UNCORRECTABLE;
}

// Calls a real function of a row as a wait for a GPU, which it is if it takes as long as that.
template <typename... Arguments>
[[gnu::noinline]] CUresult call_awaited(activity::Own& own, std::int64_t least_ns, CUresult (*real)(Arguments...),
                                        Arguments... arguments) {
    const activity::Wait wait(own, least_ns);
    const CUresult result = real(arguments...);
    if (is_failure(result)) [[unlikely]]
        activity::forget_all();
    return result;
}

// What waits for a GPU.
template <Id id, int row, std::int64_t least_ns = 0, typename Type = typename Function<id>::Type>
struct Await;

template <Id id, int row, std::int64_t least_ns, typename... Arguments>
struct Await<id, row, least_ns, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        auto* function = real<id>(row);
        if (function == nullptr) [[unlikely]]
            return absent<CUresult>();
        activity::Own* own = activity::telling();
        if (own == nullptr || activity::waiting) return function(arguments...);
        return call_awaited(*own, least_ns, function, arguments...);
    }
};

// Work that is done when the call returns.
template <Id id, int row, std::int64_t least_ns = 0, typename Type = typename Function<id>::Type>
struct AwaitedWork;

template <Id id, int row, std::int64_t least_ns, typename... Arguments>
struct AwaitedWork<id, row, least_ns, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        constexpr bool kPerThread = is_per_thread(Function<id>::kName);
        if (cap::on()) [[unlikely]]
            return call_in_turn(&Await<id, row, least_ns>::call, row, kPerThread, arguments...);
        if (!in_hook && !activity::waiting) count(row, Named(arguments...).stream, kPerThread);
        return Await<id, row, least_ns>::call(arguments...);
    }
};

// Work that is done when the call returns, if it reads or writes pageable memory of the host, and else is only
// submitted. Which of them it was shows in how long it took.
constexpr std::int64_t kSubmittedWithinNs = 50'000;

template <Id id, int row>
struct PerhapsAwaitedWork : AwaitedWork<id, row, kSubmittedWithinNs> {};

// What is no business of quota, cap and counts.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct Pass;

template <Id id, int row, typename... Arguments>
struct Pass<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) { return call_real<id, row>(arguments...); }
};

// One launch on several GPUs: it waits for its turn on each of them, and is charged to each.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct WorkOfSeveral;

template <Id id, int row>
struct WorkOfSeveral<id, row, CUresult(CUDA_LAUNCH_PARAMS*, unsigned, unsigned)> {
    static CUresult CUDAAPI call(CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned flags) {
        if (in_hook) return call_real<id, row>(launches, count, flags);
        const bool named = launches != nullptr && count > 0;
        const bool capped = cap::on() && named && count <= kMost;
        return in_turn(launches, capped ? count : 0, [&] {
            const Outermost outermost;
            hooks::count(row, named ? launches->hStream : nullptr, false);
            return call_real<id, row>(launches, count, flags);
        });
    }

  private:
    static constexpr unsigned kMost = 64;  // more GPUs than a machine has: the driver refuses it

    template <typename Launch>
    static CUresult in_turn(const CUDA_LAUNCH_PARAMS* one, unsigned left, const Launch& launch) {
        if (left == 0) return launch();
        cap::Turn turn(calls_of(row), one->hStream, false, one->function);
        const CUresult result = in_turn(one + 1, left - 1, launch);
        turn.launched(result == CUDA_SUCCESS);
        return result;
    }
};

// What asks for device memory.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct Allocate;

template <Id id, int row, typename... Arguments>
struct Allocate<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        rm::Requested taken;
        const CUresult result = call_real<id, row>(arguments...);
        taken.ended(result == CUDA_SUCCESS);
        return result;
    }
};

// Both. What is taken while it waits for its turn was not asked for.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct AllocatingWork;

template <Id id, int row, typename... Arguments>
struct AllocatingWork<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        return submit<row>(&Allocate<id, row>::call, is_per_thread(Function<id>::kName), arguments...);
    }
};

// What makes a stream wait for something else.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct Divide;

template <Id id, int row, typename... Arguments>
struct Divide<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        if (cap::on()) [[unlikely]] {
            cap::divide(calls_of(row), Named(arguments...).stream, is_per_thread(Function<id>::kName));
        }
        return call_real<id, row>(arguments...);
    }
};

// What a stream calls for the driver, in the place of the program's function.
template <typename Function>
struct Through;

template <>
struct Through<void(void*)> {
    static void CUDA_CB call(void* one) {
        const activity::Wanted wanted = activity::come_to(*static_cast<activity::Called*>(one));
        reinterpret_cast<CUhostFn>(wanted.function)(wanted.data);
    }
};

template <>
struct Through<void(CUstream, CUresult, void*)> {
    static void CUDA_CB call(CUstream stream, CUresult status, void* one) {
        const activity::Wanted wanted = activity::come_to(*static_cast<activity::Called*>(one));
        reinterpret_cast<CUstreamCallback>(wanted.function)(stream, status, wanted.data);
    }
};

// What makes a stream wait for a function of the program. In a graph it is called as often as that is launched, so one
// that is captured stays as it is; here the driver is asked, whoever began to capture.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct CallHost;

template <Id id, int row, typename Callee, typename... More>
struct CallHost<id, row, CUresult(CUstream, Callee*, void*, More...)> {
    static CUresult CUDAAPI call(CUstream stream, Callee* function, void* data, More... more) {
        constexpr bool kPerThread = is_per_thread(Function<id>::kName);
        if (cap::on()) [[unlikely]]
            cap::divide(calls_of(row), stream, kPerThread);
        activity::Own* own = activity::telling();
        activity::Called* one = nullptr;
        if (own != nullptr && !in_hook && function != nullptr && !is_captured(row, stream, kPerThread)) {
            one = activity::give(*own, reinterpret_cast<activity::AnyFunction>(function), data,
                                 context_behind(row, cap::stream_of(stream, kPerThread)));
        }
        if (one == nullptr) return call_real<id, row>(stream, function, data, more...);
        const CUresult result = call_real<id, row>(stream, &Through<Callee>::call, static_cast<void*>(one), more...);
        if (result != CUDA_SUCCESS) activity::forget(*one);
        if (is_failure(result)) activity::forget_all();
        return result;
    }
};

}  // namespace runlist::hooks
