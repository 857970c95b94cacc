// How much GPU time a context uses: its work is put between pairs of events, and the times between those are united.
//
// Long work has a pair of its own. Short work that is queued behind other work of its stream shares one, since events
// take time as well; work on a stream that ran dry begins a new pair, so that pauses of the host are not counted. Time
// for which another process had the GPU between two of our events is counted: events cannot tell it apart. Where the
// driver plane reaches, it is used instead of all this.
//
// Everything here is under the lock of the context's gate, with the context's own copy of libcuda, in relaxed capture
// mode, and never for a stream that is capturing. What fails here fails quietly: the program sees nothing of it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cap/calls.hpp"
#include "cap/cover.hpp"
#include "cap/estimates.hpp"

namespace runlist::cap {

// GPU time, ns.
struct Found {
    std::int64_t correction = 0;  // to what was charged beforehand
    std::int64_t measured = 0;
};

class Meter {
  public:
    // A stream and what tells it apart from others: its handle, and for the per-thread default stream the thread.
    struct Lane {
        CUstream stream;
        std::uint64_t key;
    };

    // A launch under way.
    struct Ticket {
        std::uint32_t bracket = 0;  // number + 1; 0: not measured
        std::uint32_t generation = 0;
        std::int64_t charged = 0;
        Estimates::Index work = 0;
        bool joinable = false;
    };

    // A call failed as it only does in a context that is broken or gone: nothing is measured any more.
    bool off() const { return off_; }

    Estimates& estimates() { return estimates_; }

    // Takes what has completed, and charges work that runs longer than was thought while it runs.
    Found poll(const Calls& calls, std::int64_t now);

    // Whether another launch can be measured, and what is under way is little enough to launch on.
    bool has_room(const Lane& lane, Estimates::Index work) const;

    static constexpr std::int64_t kForEver = INT64_MAX;

    // For how long a launch can be held back on account of work that runs longer than was thought.
    std::int64_t patience() const { return patience_; }

    // Before a launch for which `charged` ns were charged. `context` is the stream's. `joinable`: others are likely to
    // follow, so that short work can wait for them to be measured together.
    Ticket begin(const Calls& calls, CUcontext context, const Lane& lane, Estimates::Index work, std::int64_t charged,
                 bool joinable);

    // After it. A launch that failed took no time.
    Found end(const Calls& calls, const Lane& lane, const Ticket& ticket, bool ok);

    // What comes next in this stream is measured apart from what came before.
    void divide(const Calls& calls, const Lane& lane);

  private:
    static constexpr int kBrackets = 64;
    static constexpr int kTracks = 32;
    static constexpr int kLaunches = 32;  // in a bracket

    enum class State : std::uint8_t { kFree, kOpen, kClosed };

    // A pair of events and what was launched between them.
    struct Bracket {
        CUevent first;  // made for the first use of the bracket, and kept
        CUevent last;
        std::int64_t opened;   // host time, after the first event was queued
        std::int64_t running;  // host time at which the first event was seen to be passed; 0: not yet
        std::int64_t lead;     // of the time between the events: the host had not launched anything yet
        std::int64_t charged;
        std::uint32_t generation;
        std::uint16_t launching;  // calls under way
        std::uint8_t launches;
        std::uint8_t next;  // of the same track, number + 1
        State state;
        bool ran_dry;  // the stream was idle before it
        bool unknown;  // holds work that was never measured
        Estimates::Index work[kLaunches];
    };

    // The brackets of a stream, in its order. Numbers + 1; 0 for none.
    struct Track {
        std::uint64_t key;
        std::uint8_t oldest;
        std::uint8_t newest;
        std::uint8_t open;  // the one that the next launch joins
    };

    Bracket& at(std::uint32_t number) { return brackets_[number - 1]; }
    const Track* find(std::uint64_t key) const;
    std::int64_t used_at(const Track& track) const;
    std::uint8_t unused() const;
    std::uint8_t open(const Calls& calls, CUcontext context, const Lane& lane, Track& track, bool ran_dry);
    bool make_events(const Calls& calls, CUcontext context, Bracket& bracket);
    bool is_full(const Bracket& bracket) const;
    void close(const Calls& calls, CUstream stream, Track& track, std::uint8_t number);
    void abandon(Track& track, std::uint8_t number);
    void release(Track& track, std::uint8_t number);
    bool is_passed(const Calls& calls, CUevent event);
    bool succeeded(CUresult result);
    Found harvest(const Calls& calls, Bracket& bracket, std::int64_t now);
    void learn(const Bracket& bracket, std::int64_t fresh, std::int64_t length);

    Bracket brackets_[kBrackets]{};
    Track tracks_[kTracks]{};
    Estimates estimates_;
    Cover cover_;
    CUevent reference_ = nullptr;    // the last event that was evaluated, and
    std::int64_t reference_at_ = 0;  // where it lies on the context's own axis of GPU time, ns
    std::int64_t polled_ = 0;
    std::int64_t patience_ = kForEver;
    int in_flight_ = 0;  // launches in closed brackets
    int unknown_ = 0;    // brackets with work that was never measured
    bool off_ = false;
};

}  // namespace runlist::cap
