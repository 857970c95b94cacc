// The compute runlist of one GPU: which channel group is on the GPU, and how far its work has come.
//
// A pure, event-driven model: no input or output, and time is passed in. Events are computed at their exact model
// times, so it does not matter how late or how rarely `advance` is called. All times are nanoseconds of one clock.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "model/busy_history.hpp"
#include "shared/protocol.hpp"

namespace emulator {

inline constexpr Time kNever = std::numeric_limits<Time>::max();

using GroupId = std::uint32_t;
using QueueId = std::uint32_t;

// The kernel at the head of a queue. It runs for `waves` times `wave` ns; one that `holds` takes no processor and ends
// when `release` is called.
struct Work {
    std::uint64_t waves = 1;
    Time wave = 0;
    bool holds = false;
    std::uint64_t order = 0;  // among the kernels of one group, equals in priority: the lowest first
    Time done = 0;

    Time total() const { return wave * static_cast<Time>(waves); }
    double fraction() const { return total() > 0 ? static_cast<double>(done) / static_cast<double>(total()) : 1.0; }
};

class RunlistListener {
  public:
    virtual ~RunlistListener() = default;
    // The group left the GPU, or gave way, with this part of the kernel executed.
    virtual void on_progress(QueueId queue, double fraction) = 0;
    // The kernel ended. The listener may submit the queue's next work at once, at the same time.
    virtual void on_complete(QueueId queue, Time at) = 0;
    // The group's residency on the GPU starts, or ends: when another group takes the GPU, when the group is suspended,
    // preempted or removed. Not when it runs out of work: a group that is alone stays.
    virtual void on_start(GroupId group, Time at) = 0;
    virtual void on_end(GroupId group, Time at) = 0;
};

class Runlist {
  public:
    explicit Runlist(RunlistListener& listener) : listener_(listener) {}

    GroupId add_group(Time slice);
    void remove_group(Time at, GroupId id);
    // A queue is a stream; `priority` as in CUDA (lower first), `channel` the group's channel it submits through.
    QueueId add_queue(GroupId group, int priority, std::uint32_t channel);
    void remove_queue(Time at, QueueId id);

    // The queue must hold no work.
    void submit(Time at, QueueId queue, const Work& work);
    // Ends a holding kernel.
    void release(Time at, QueueId queue);

    void set_slice(Time at, GroupId group, Time slice);
    void set_realtime(Time at, GroupId group, bool realtime);
    // The group gives way only between waves of blocks (CTA mode), not at any instruction.
    void set_cta_preemption(GroupId group, bool cta) { groups_.at(group).cta = cta; }
    // Takes effect at `effective`, which may lie ahead. Bit i of `channels` is channel i.
    void set_enabled(Time effective, GroupId group, std::uint32_t channels, bool enabled);
    // Ends the group's residency at `effective`; it comes back when it has work.
    void preempt(Time effective, GroupId group);
    // Ends the resident's slice if another group waits.
    void expire_slice(Time at);

    void advance(Time to);
    // Also counts what has been done up to `at`: nothing can be submitted before it any more.
    void reach(Time at);
    Time next_event() const;
    // Time of the last event processed: nothing can be submitted before it.
    Time now() const { return now_; }
    // No event that is not yet known can end the queue's work before this.
    Time earliest_completion(QueueId queue) const;
    // From when on the queue's kernel executes; kNever while its group is not on the GPU.
    Time executing_from(QueueId queue) const;

    // When kernels of the group, or of any group, were executing: up to what has been reached.
    const BusyHistory& busy(GroupId group) const { return groups_.at(group).busy; }
    const BusyHistory& busy() const { return busy_; }

  private:
    struct Queue {
        GroupId group;
        int priority;
        std::uint32_t channel;
        std::optional<Work> work;
        bool unseen = false;  // picked up only at the group's next switch-in
    };
    struct Group {
        Time slice;
        std::uint32_t enabled = ~0U;
        bool realtime = false;
        bool cta = false;
        std::vector<QueueId> queues;
        std::optional<QueueId> current;  // whose kernel has the processors
        BusyHistory busy;
    };
    // What a control does, some time after it was asked for.
    struct Change {
        enum Kind { kEnable, kDisable, kPreempt };
        Time at;
        GroupId group;
        Kind kind;
        std::uint32_t channels;
    };

    bool ready(const Queue& queue) const;
    bool runnable(const Group& group) const;
    bool others_runnable(GroupId id) const;
    bool realtime_waits(GroupId id) const;
    std::optional<QueueId> best(const Group& group) const;
    std::optional<GroupId> next_runnable(GroupId after) const;
    Work* current_work();
    const Work* current_work() const;
    Time wave_boundary() const;
    Time gives_way(Time earliest) const;
    Time slice_end(Time at) const;
    void accrue(Time to);
    void request(const Change& change);
    void begin_switch(Time at);
    void leave(Time at);
    void end_switch(Time at);
    void complete_current(Time at);
    void choose_current();
    void apply_changes(Time at);
    void apply(const Change& change);
    void reschedule(Time at);

    RunlistListener& listener_;
    std::map<GroupId, Group> groups_;
    std::map<QueueId, Queue> queues_;
    std::vector<Change> changes_;
    GroupId next_group_ = 1;
    QueueId next_queue_ = 1;
    Time now_ = 0;
    BusyHistory busy_;

    std::optional<GroupId> resident_;
    GroupId last_resident_ = 0;
    Time slice_start_ = 0;
    Time restored_at_ = 0;  // progress is made from here on
    Time accrued_to_ = 0;   // progress is counted up to here
    bool contended_ = false;
    Time waiting_since_ = 0;  // when contention began
    Time switch_at_ = kNever;
    int boundaries_left_ = 0;  // kernels to end before giving way to a realtime group
    std::optional<GroupId> incoming_;
    Time switch_done_ = kNever;
    std::optional<QueueId> completing_;
};

}  // namespace emulator
