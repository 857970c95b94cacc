// What CUDA's handles name here: contexts, their streams and events, and captures. Plain data, guarded by the driver's
// lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "cuda/driver/driver.hpp"
#include "cuda/execution/task.hpp"

namespace emulator::cuda {

struct Stream;

struct Context {
    std::uint32_t slot;
    std::uint32_t gpu;
    unsigned flags;
    bool primary;
    UniqueFd node;                                       // a context keeps device nodes open, as on a real GPU
    std::vector<DeviceMemory> overhead;                  // what a context takes for itself
    Stream* legacy = nullptr;                            // the default stream, which all blocking streams order with
    std::map<std::thread::id, Stream*> per_thread = {};  // CU_STREAM_PER_THREAD
    std::set<Stream*> streams = {};                      // all of them
    std::map<CUlimit, std::size_t> limits = {};          // those that were set
    Context* base = nullptr;                             // of a green one: the primary one that it is a part of, with
    unsigned processors = 0;
    std::vector<Point> awaited = {};  // what all of it waits for
    Stream* gathering = nullptr;      // of its own, in which events of all of it are recorded
    std::uint64_t id = new_id();

    // Whose memory and code it has.
    Context& whole() { return base ? *base : *this; }
    const Context& whole() const { return base ? *base : *this; }
};

// One capture: the stream that it began in, and those that joined it by waiting for its events. What they are given to
// do is kept with the order that it has to come in, instead of being done.
struct Capture {
    struct Kept {
        Task task;
        std::vector<std::size_t> needs;  // places in `kept`, before its own
    };

    std::uint64_t id;
    CUstreamCaptureMode mode;
    std::thread::id thread;  // that began it
    Stream* origin;
    std::set<Stream*> streams = {};
    std::vector<Kept> kept = {};
    bool valid = true;
    bool ended = false;
};

struct Stream {
    Context* context;
    std::uint32_t slot;
    int priority;
    unsigned flags;
    std::uint64_t submitted = 0;  // number of the last operation
    std::uint64_t id = new_id();
    std::shared_ptr<Capture> capture = nullptr;                   // while it captures, and
    std::vector<std::size_t> captured = {};                       // what the next task comes behind
    std::map<CUstreamAttrID, CUstreamAttrValue> attributes = {};  // those that were set

    bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
    Point last() const { return {slot, submitted}; }
};

struct Event {
    Context* context;
    std::uint32_t slot;
    unsigned flags;
    bool recorded = false;
    bool shared = false;                         // other processes may see it, by
    wire::Key key = {};                          // this: the device knows where it was last recorded
    Point point = {};                            // where it was last recorded
    std::shared_ptr<Capture> capture = nullptr;  // when that stream was capturing, and
    std::vector<std::size_t> captured = {};      // what it stands for
};

// All that there are.
struct Objects {
    std::set<Context*> contexts;
    std::set<Stream*> streams;
    std::set<Stream*> detached;  // of green contexts that were destroyed
    std::set<Event*> events;
    std::set<Capture*> captures;  // those that go on
    std::vector<bool> stream_slots = std::vector<bool>(wire::kStreamSlots);
    std::vector<bool> event_slots = std::vector<bool>(wire::kEventSlots);
};

inline Objects& objects() { return kept<Objects>(); }

}  // namespace emulator::cuda
