// What this process does on the GPUs, told by its slot of the region: how much work it submits, and how long it waits
// for it. Whoever shares the GPU can then give way while a request is at work, and only then.
//
// Nothing here takes a lock. Counting a submission is one addition and two looks; the clock is read once for each
// stretch between two waits.
#pragma once

#include <atomic>
#include <cstdint>

#include "protocol/tenant.autogen.hpp"
#include "region/layout.hpp"

namespace runlist::activity {

// What is left to do for a submission, out of the way of all others.
enum class Left : std::uint8_t {
    kNothing,
    kMore,  // it is counted; it is the first since a wait or since something came in, or somebody waits to hear of it
    kAll,
};

// What is of this process alone: a child of fork finds it empty, counts in a slot of its own, and waits for nothing.
struct Own {
    std::atomic<region::Slot*> slot;     // null until it is claimed
    std::atomic<std::int64_t> first_ns;  // of the first submission since the last wait ended; 0: there was none
    std::atomic<std::uint64_t> pending;  // what came in, and no work followed yet (arrivals/arrivals.hpp); 0: nothing
    std::atomic<std::int64_t> quiet_ns;  // when the last wait ended
    std::atomic<std::int64_t> asked_ns;  // when announcements were last known to be wanted; 0: not of late
    std::atomic<std::int32_t> pid;       // whose all this is: not a child's that shares our memory
    alignas(64) region::Slot nobodys;    // stands for it where the region has no slot left

    // First the count, then the look at `watch`; the daemon writes `watch` first and then reads the count. So one of
    // the two sees the other.
    Left submit() {
        region::Slot* mine = slot.load(std::memory_order_acquire);
        if (mine == nullptr) return Left::kAll;
        mine->activity.work.fetch_add(1);
        const bool usual = first_ns.load(std::memory_order_relaxed) != 0 &&
                           pending.load(std::memory_order_relaxed) == 0 && (mine->watch.load() & region::kWork) == 0;
        return usual ? Left::kNothing : Left::kMore;
    }

    // Does what is left. True where somebody waits to hear of it.
    bool finish(Left left);

    // Whether somebody wants to hear what is announced, or did so a moment ago.
    bool attends() const {
        const region::Slot* mine = slot.load(std::memory_order_acquire);
        return mine != nullptr && ((mine->watch.load(std::memory_order_relaxed) & region::kAnnouncements) != 0 ||
                                   asked_ns.load(std::memory_order_relaxed) != 0);
    }
};

extern constinit std::atomic<Own*> own;

// Streams that capture, or more: one that ended otherwise than by its end stays. What is captured is no work yet, and
// only while this is not 0 a launch asks whether it is.
extern constinit std::atomic<std::int32_t> captures;

// nullptr: nobody is told anything, in a process without a region.
inline Own* telling() { return own.load(std::memory_order_acquire); }

// glibc's cleanup handlers: what runs when a thread is cancelled or ends in a call, or leaves it by a long jump.
// PLACE is what they keep on the stack (struct _pthread_cleanup_buffer).
struct Cleanup {
    struct Place {
        void (*routine)(void*);
        void* argument;
        int cancel_type;
        Place* previous;
    };
    using Push = void(Place*, void (*routine)(void*), void* argument);
    using Pop = void(Place*, int execute);
    Push* push = nullptr;
    Pop* pop = nullptr;
};

// Tells from now on. May be called again; a child of fork goes on by itself.
void start(const Cleanup& cleanup);

// Says WORK to the daemon if it still waits to hear of work. preload.cpp says how: nothing here knows of messages.
void say_work(Own& mine);
using OnWork = void (*)();
extern const OnWork on_work;

// Says ANNOUNCE if the daemon still waits to hear of anything: there will be work in so many nanoseconds. What is so
// far ahead that nobody makes room for it yet leaves the daemon waiting to hear of work.
void announce(Own& mine, std::int64_t lead_ns);
using OnAnnouncement = void (*)(std::int64_t lead_ns);
extern const OnAnnouncement on_announcement;
inline constexpr std::int64_t kAtOnceNs = tenant::kAtOnceMs * std::int64_t{1'000'000};

// A wait that began then ends now.
void waited(Own& mine, region::Slot& slot, std::int64_t began_ns);

// Whether a wait of this thread is being counted: a call that another library handed on to us is the same wait.
extern constinit thread_local bool waiting;

// A thread that waits for a GPU, while it lives, also where the thread is cancelled meanwhile. Not within another one.
// What took less than `least_ns` was no wait.
class Wait {
  public:
    Wait(Own& mine, std::int64_t least_ns);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

  private:
    static void end(void* wait);

    Own& mine_;
    region::Slot* slot_;
    std::int64_t least_ns_;
    std::int64_t began_;
    Cleanup::Place place_;
};

}  // namespace runlist::activity
