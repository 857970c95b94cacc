// Programs of several clients that share a GPU: what they do, and what their memory holds in the end. Each has one
// right result, since what touches the same memory is ordered by streams, events or waits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace operations {

inline constexpr std::uint32_t kWords = 256;  // of every buffer
using Words = std::array<std::uint32_t, kWords>;

inline constexpr int kNone = -1;

// What is done to memory. Most pairs of these give something else in the other order.
enum class Kind {
    kAdvance,     // kernel: a linear congruential generator, `value` times
    kFillKernel,  // kernel
    kSet,         // fill of 1, 2 or 4 bytes an element
    kCopy,
    kHost,  // function of the host: to[i] = to[i] * value + from[i]
};

struct Work {
    Kind kind = Kind::kCopy;
    int to = 0;
    int from = kNone;  // buffers
    std::uint32_t to_at = 0;
    std::uint32_t from_at = 0;
    std::uint32_t count = 0;  // words
    std::uint32_t value = 0;
    std::uint32_t width = 4;  // bytes an element of a fill
};

inline std::uint32_t repeated(std::uint32_t value, std::uint32_t width) {
    if (width == 1) return (value & 0xFF) * 0x01010101U;
    return width == 2 ? (value & 0xFFFF) * 0x00010001U : value;
}

// What the work is to give.
inline void do_work(const Work& work, std::vector<Words>& buffers) {
    Words& to = buffers[static_cast<std::size_t>(work.to)];
    const Words from = work.from == kNone ? to : buffers[static_cast<std::size_t>(work.from)];
    for (std::uint32_t i = 0; i < work.count; ++i) {
        std::uint32_t& word = to[work.to_at + i];
        switch (work.kind) {
            case Kind::kAdvance:
                for (std::uint32_t round = 0; round < work.value; ++round) word = word * 1664525U + 1013904223U;
                break;
            case Kind::kFillKernel:
                word = work.value;
                break;
            case Kind::kSet:
                word = repeated(work.value, work.width);
                break;
            case Kind::kCopy:
                word = from[work.from_at + i];
                break;
            case Kind::kHost:
                word = word * work.value + from[work.from_at + i];
                break;
        }
    }
}

enum class Place { kDevice, kPinned, kPageable, kMade, kMadeInOrder };  // the last two while the program runs

struct Buffer {
    Place place;
    int owner;
};

enum class StreamKind { kLegacy, kPerThread, kMade };

struct Stream {
    StreamKind kind;
    int owner;
    bool helper = false;  // of the owner's other thread, which is no client's
    bool blocking = true;
    int priority = 0;
    bool green = false;  // of the machine's green context
};

struct Event {
    bool timing;
};

// What a client does, one after the other.
enum class Do {
    kWork,        // work, on stream
    kWorkAtOnce,  // by the forms that name no stream, which are the default stream's
    kModuleWork,  // by a kernel of a module that is loaded before and unloaded after it
    kRecord,      // event, on stream
    kWait,        // stream, for event
    kEventSynchronize,
    kStreamSynchronize,
    kContextSynchronize,
    kEventAwait,     // asks until it has happened
    kStreamAwait,    // the same
    kEventReady,     // asks: must have happened
    kEventPending,   // asks: cannot have happened
    kStreamPending,  // the same
    kContextRecord,  // event, of all that the context was given
    kContextWait,    // all of the context, for event
    kElapsed,        // between event and event2, both of which have happened
    kEventDestroy,
    kStreamDestroy,
    kHostWrite,  // work, by this thread
    kHostCheck,  // buffer: must be `expected`
    kCapture,    // works on stream, and works2 on stream2, into exec; with nodes that wait for event2, and record event
    kLaunch,     // exec, on stream
    kExecDestroy,
    kAllocate,  // buffer
    kFree,
    kAllocateInOrder,  // on stream
    kFreeInOrder,
    kClose,    // the gate: the stream holds at it
    kOpen,     // the gate
    kSend,     // message: event has been recorded
    kReceive,  // message: waits for that
    kPause,    // value microseconds
    kSet,      // functions, the context, or stream and stream2: to what they are set already
};

struct Action {
    Do what;
    int stream = kNone;
    int stream2 = kNone;
    int event = kNone;
    int event2 = kNone;
    int buffer = kNone;
    int exec = kNone;
    int message = kNone;
    bool helper = false;        // done by the client's other thread
    bool update = false;        // kCapture: what the exec does is replaced
    std::uint32_t variant = 0;  // which of several forms of a call
    std::uint32_t value = 0;
    Work work = {};
    std::vector<Work> works = {};
    std::vector<Work> works2 = {};
    Words expected = {};
};

struct Program {
    std::uint64_t seed;
    std::vector<std::vector<Action>> clients;
    std::vector<Buffer> buffers;
    std::vector<Stream> streams;
    std::vector<Event> events;
    std::vector<bool> alive;  // buffers, in the end
    int execs = 0;
    int messages = 0;
    std::vector<Words> contents;  // in the end
};

std::string text(const Action& action);

// The program of a seed. `steps`: most of what its clients are given to do, 0 for as many as the seed says.
// `helpers`: whether threads that are no client's take part. `events`: whether graphs have nodes with events.
Program generate(std::uint64_t seed, int clients, int steps, bool helpers, bool events);

}  // namespace operations
