// Functions of the program that a stream calls when it comes to them. Who waits for one waits in no call of the driver:
// JAX and TensorFlow do. So while there is one, somebody waits for the GPU, and that was a wait if nothing more was
// submitted meanwhile.
#pragma once

#include <atomic>
#include <cstdint>

#include "activity/activity.hpp"

namespace runlist::activity {

using AnyFunction = void (*)();  // whatever it takes besides its data

// What a stream is given in the place of a function of the program. It is free again once that was called, not before:
// should the driver call it all the same, what it calls is still there.
struct Called {
    enum State : std::uint8_t { kFree, kTaken, kAwaited, kForgotten };
    std::atomic<State> state;
    AnyFunction function;
    void* data;
    const void* context;  // of the stream
    std::uint64_t work;
    std::int64_t began_ns;
};

// Before the stream is given it. nullptr where nobody is told of it, or there is no room: then it is given the
// program's function itself.
Called* give(Own& own, AnyFunction function, void* data, const void* context);

// The driver refused it: nobody waits for it.
void forget(Called& one);

// A context ended: of its functions those that were not called never will be.
void forget_all_of(const void* context);

// A context failed, whichever: it calls no functions any more. Nobody waits for those of others either, which costs no
// more than their waits.
void forget_all();

// The stream has come to it: what the program wants to have called now.
struct Wanted {
    AnyFunction function;
    void* data;
};
Wanted come_to(Called& one);

}  // namespace runlist::activity
