// Work for the GPU, which waits for its turn under a compute cap, and what asks for device memory.
#pragma once

#include "cap/gate.hpp"
#include "hooks/functions.hpp"
#include "hooks/outermost.hpp"
#include "rm/door.hpp"

namespace runlist::hooks {

// What the gate uses of the copy of libcuda in a row.
const cap::Calls& calls_of(int row);
void set_calls(int row, const resolve::Object& copy);

// Says that queries, and the cap if there is one, are at work in this process.
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
constexpr bool is_per_thread(std::string_view name) { return name.ends_with("_ptsz") || name.ends_with("_ptds"); }

// Calls a real function of a row when it is its turn. One for all functions of a type, as it is large.
template <typename... Arguments>
[[gnu::noinline, gnu::cold]] CUresult call_in_turn(CUresult (*real)(Arguments...), int row, bool per_thread,
                                                   Arguments... arguments) {
    const Outermost outermost;
    if (!outermost) return real(arguments...);
    const Named named(arguments...);
    cap::Turn turn(calls_of(row), named.stream, per_thread, named.work);
    const CUresult result = real(arguments...);
    turn.launched(result == CUDA_SUCCESS);
    return result;
}

template <Id id, int row, typename Type = typename Function<id>::Type>
struct Work;

template <Id id, int row, typename... Arguments>
struct Work<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        auto* function = real<id>(row);
        if (function == nullptr) [[unlikely]]
            return absent<CUresult>();
        if (cap::on()) [[unlikely]]
            return call_in_turn(function, row, is_per_thread(Function<id>::kName), arguments...);
        return function(arguments...);
    }
};

// One launch on several GPUs: it waits for its turn on each of them, and is charged to each.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct WorkOfSeveral;

template <Id id, int row>
struct WorkOfSeveral<id, row, CUresult(CUDA_LAUNCH_PARAMS*, unsigned, unsigned)> {
    static CUresult CUDAAPI call(CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned flags) {
        const Outermost outermost;
        const bool capped = cap::on() && outermost && launches != nullptr && count <= kMost;
        return in_turn(launches, capped ? count : 0, [&] { return call_real<id, row>(launches, count, flags); });
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
        const rm::Requested taken;
        return call_real<id, row>(arguments...);
    }
};

// Both. What is taken while it waits for its turn was not asked for.
// As in Work; shared by a function of both, that costs a launch 4 ns more.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct AllocatingWork;

template <Id id, int row, typename... Arguments>
struct AllocatingWork<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        auto* allocate = &Allocate<id, row>::call;
        if (cap::on()) [[unlikely]]
            return call_in_turn(allocate, row, is_per_thread(Function<id>::kName), arguments...);
        return allocate(arguments...);
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

}  // namespace runlist::hooks
