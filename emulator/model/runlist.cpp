#include "model/runlist.hpp"

#include <algorithm>
#include <utility>

#include "model/timing.hpp"

namespace emulator {

GroupId Runlist::add_group(Time slice) {
    groups_.emplace(next_group_, Group{.slice = slice, .queues = {}, .current = {}, .busy = {}});
    return next_group_++;
}

void Runlist::remove_group(Time at, GroupId id) {
    reach(at);
    std::erase_if(changes_, [id](const Change& change) { return change.group == id; });
    for (const QueueId queue : groups_.at(id).queues) queues_.erase(queue);
    groups_.erase(id);
    if (resident_ == id) {
        listener_.on_end(id, now_);
        resident_.reset();
        switch_at_ = kNever;
    }
    if (incoming_ == id) incoming_.reset();  // the switch ends with nobody; end_switch looks for another
    reschedule(now_);
}

QueueId Runlist::add_queue(GroupId group, int priority, std::uint32_t channel) {
    queues_.emplace(next_queue_, Queue{.group = group, .priority = priority, .channel = channel, .work = {}});
    groups_.at(group).queues.push_back(next_queue_);
    return next_queue_++;
}

void Runlist::remove_queue(Time at, QueueId id) {
    if (!queues_.contains(id)) return;  // gone with its group
    reach(at);
    Group& group = groups_.at(queues_.at(id).group);
    if (group.current == id) group.current.reset();
    std::erase(group.queues, id);
    queues_.erase(id);
    reschedule(now_);
}

void Runlist::submit(Time at, QueueId id, const Work& work) {
    reach(at);
    Queue& queue = queues_.at(id);
    queue.work = work;
    // A channel that becomes busy while its group is on the GPU and another group waits is picked up only at the next
    // switch-in. Work right behind work of the same queue is no such case: its channel was never idle.
    queue.unseen = resident_ == queue.group && contended_ && completing_ != id;
    if (!completing_) reschedule(now_);
}

void Runlist::release(Time at, QueueId id) {
    reach(at);
    Queue& queue = queues_.at(id);
    if (!queue.work || !queue.work->holds) return;
    queue.work.reset();
    completing_ = id;
    listener_.on_complete(id, now_);
    completing_.reset();
    reschedule(now_);
}

void Runlist::set_slice(Time at, GroupId id, Time slice) {
    reach(at);
    groups_.at(id).slice = slice;
    if (resident_ == id && contended_ && boundaries_left_ == 0)
        switch_at_ = gives_way(std::max({now_, waiting_since_, slice_end(waiting_since_)}));
}

void Runlist::set_realtime(Time at, GroupId id, bool realtime) {
    reach(at);
    groups_.at(id).realtime = realtime;
    contended_ = false;  // decide anew how the resident gives way
    reschedule(now_);
}

void Runlist::set_enabled(Time effective, GroupId id, std::uint32_t channels, bool enabled) {
    request({effective, id, enabled ? Change::kEnable : Change::kDisable, channels});
}

void Runlist::preempt(Time effective, GroupId id) { request({effective, id, Change::kPreempt, 0}); }

// Changes of a group come in the order of the requests, though stopping takes longer than going on.
void Runlist::request(const Change& change) {
    Time at = std::max(change.at, now_);
    for (const Change& earlier : changes_)
        if (earlier.group == change.group) at = std::max(at, earlier.at);
    changes_.push_back(change);
    changes_.back().at = at;
}

void Runlist::expire_slice(Time at) {
    reach(at);
    if (resident_ && others_runnable(*resident_)) begin_switch(now_);
}

bool Runlist::ready(const Queue& queue) const {
    return queue.work && !queue.unseen && (groups_.at(queue.group).enabled >> (queue.channel & 31) & 1);
}

bool Runlist::runnable(const Group& group) const {
    return std::ranges::any_of(group.queues, [this](QueueId id) { return ready(queues_.at(id)); });
}

bool Runlist::others_runnable(GroupId id) const { return next_runnable(id).value_or(id) != id; }

bool Runlist::realtime_waits(GroupId id) const {
    return std::ranges::any_of(groups_, [&](const auto& entry) {
        return entry.first != id && entry.second.realtime && runnable(entry.second);
    });
}

// The most urgent kernel that wants processors, the oldest of equals.
std::optional<QueueId> Runlist::best(const Group& group) const {
    std::optional<QueueId> found;
    for (const QueueId id : group.queues) {
        const Queue& queue = queues_.at(id);
        if (!ready(queue) || queue.work->holds) continue;
        const Queue* other = found ? &queues_.at(*found) : nullptr;
        if (!other || queue.priority < other->priority ||
            (queue.priority == other->priority && queue.work->order < other->work->order))
            found = id;
    }
    return found;
}

// Round robin: the first runnable group behind `after`, which comes last itself.
std::optional<GroupId> Runlist::next_runnable(GroupId after) const {
    for (auto it = groups_.upper_bound(after); it != groups_.end(); ++it)
        if (runnable(it->second)) return it->first;
    for (auto it = groups_.begin(); it != groups_.end() && it->first <= after; ++it)
        if (runnable(it->second)) return it->first;
    return std::nullopt;
}

Work* Runlist::current_work() {
    if (!resident_) return nullptr;
    const std::optional<QueueId> current = groups_.at(*resident_).current;
    return current ? &*queues_.at(*current).work : nullptr;
}

const Work* Runlist::current_work() const { return const_cast<Runlist*>(this)->current_work(); }

// When the current kernel gives way to a more urgent one of its own group: at the end of a wave of blocks.
Time Runlist::wave_boundary() const {
    const Work* work = current_work();
    if (!work || work->wave <= 0) return kNever;
    const Group& group = groups_.at(*resident_);
    const std::optional<QueueId> wanted = best(group);
    if (!wanted || wanted == group.current || queues_.at(*wanted).priority >= queues_.at(*group.current).priority)
        return kNever;
    const Time into_wave = work->done % work->wave;
    const Time left = into_wave == 0 ? 0 : work->wave - into_wave;
    return std::max(accrued_to_, restored_at_) + left;
}

// When the resident leaves that is to leave at `earliest`: at once, or in CTA mode at the next end of a wave of blocks.
Time Runlist::gives_way(Time earliest) const {
    const Work* work = current_work();
    if (!groups_.at(*resident_).cta || !work || work->wave <= 0) return earliest;
    const Time boundary = std::max(accrued_to_, restored_at_) + work->wave - work->done % work->wave;
    if (boundary >= earliest) return boundary;
    return boundary + (earliest - boundary + work->wave - 1) / work->wave * work->wave;
}

// End of the resident's slice at `at`: a group that is alone gets one slice after the other.
Time Runlist::slice_end(Time at) const {
    const Time slice = groups_.at(*resident_).slice;
    if (slice <= 0) return at;
    const Time used = std::max<Time>(0, at - slice_start_);
    if (used > kNever / 2 || slice > kNever - slice_start_ - used - slice) return kNever;
    return slice_start_ + std::max<Time>(1, (used + slice - 1) / slice) * slice;
}

// Counts the current kernel's progress up to `to`, and the time in which any was executing, those that hold included.
void Runlist::accrue(Time to) {
    const Time from = std::max(accrued_to_, restored_at_);
    if (resident_ && to > from) {
        if (Work* work = current_work()) work->done += std::min(to - from, work->total() - work->done);
        if (Group& group = groups_.at(*resident_); runnable(group)) {
            group.busy.add(from, to);
            busy_.add(from, to);
        }
    }
    accrued_to_ = std::max(accrued_to_, to);
}

// An instant given from outside cannot lie before what has already happened.
void Runlist::reach(Time at) {
    if (at <= now_) return;
    if (completing_) return;  // called from a listener: this instant
    advance(at);
    accrue(at);
    now_ = at;
}

void Runlist::leave(Time at) {
    Group& group = groups_.at(*resident_);
    if (group.current) {
        listener_.on_progress(*group.current, queues_.at(*group.current).work->fraction());
        group.current.reset();
    }
    for (const QueueId id : group.queues) queues_.at(id).unseen = false;  // the next switch-in picks all of them up
    listener_.on_end(*resident_, at);
    last_resident_ = *resident_;
    resident_.reset();
    contended_ = false;
    switch_at_ = kNever;
    boundaries_left_ = 0;
}

void Runlist::begin_switch(Time at) {
    Time gap = timing::kSwitchGap;
    if (resident_) {
        const Group& outgoing = groups_.at(*resident_);
        if (outgoing.cta && outgoing.current) gap -= timing::kCtaSaving;
        leave(at);
    }
    incoming_ = next_runnable(last_resident_);
    switch_done_ = at + gap;
}

void Runlist::end_switch(Time at) {
    switch_done_ = kNever;
    const std::optional<GroupId> incoming = std::exchange(incoming_, std::nullopt);
    if (!incoming || !groups_.contains(*incoming)) return;
    resident_ = incoming;
    slice_start_ = at;
    restored_at_ = at + timing::kRestore;
    accrued_to_ = at;
    contended_ = false;
    listener_.on_start(*resident_, at);
}

void Runlist::complete_current(Time at) {
    Group& group = groups_.at(*resident_);
    const QueueId id = *group.current;
    group.current.reset();
    queues_.at(id).work.reset();
    completing_ = id;
    listener_.on_complete(id, at);
    completing_.reset();
    if (boundaries_left_ > 0 && --boundaries_left_ == 0) switch_at_ = at;
}

void Runlist::choose_current() {
    Group& group = groups_.at(*resident_);
    if (group.current && !ready(queues_.at(*group.current))) {
        listener_.on_progress(*group.current, queues_.at(*group.current).work->fraction());
        group.current.reset();
    }
    if (!group.current) group.current = best(group);
}

void Runlist::apply_changes(Time at) {
    for (auto it = changes_.begin(); it != changes_.end();) {
        if (it->at > at) {
            ++it;
            continue;
        }
        apply(*it);
        it = changes_.erase(it);
    }
}

void Runlist::apply(const Change& change) {
    Group& group = groups_.at(change.group);
    if (change.kind == Change::kEnable) group.enabled |= change.channels;
    if (change.kind == Change::kDisable) group.enabled &= ~change.channels;
    // Stopped or preempted, a group leaves, though it be alone and idle.
    if (resident_ != change.group || change.kind == Change::kEnable) return;
    if (change.kind == Change::kDisable && runnable(group)) return;
    leave(change.at);
    if (change.kind != Change::kPreempt || !next_runnable(change.group)) return;
    begin_switch(change.at);
    if (incoming_ == change.group) switch_done_ = change.at + timing::kPreemptReturn;
}

// Decides, after anything changed, who is on the GPU and until when.
void Runlist::reschedule(Time at) {
    if (switch_done_ != kNever) return;
    if (!resident_) {
        if (next_runnable(last_resident_)) begin_switch(at);
        return;
    }
    choose_current();
    const Group& group = groups_.at(*resident_);
    const bool others = others_runnable(*resident_);
    if (!runnable(group)) {
        const bool stopped =
            std::ranges::any_of(group.queues, [this](QueueId id) { return queues_.at(id).work.has_value(); });
        if (others)
            begin_switch(at);
        else if (stopped)
            leave(at);  // suspended, or picked up only at a switch-in
        if (!resident_ && switch_done_ == kNever && next_runnable(last_resident_)) begin_switch(at);
        return;
    }
    if (!others) {
        contended_ = false;
        switch_at_ = kNever;
        boundaries_left_ = 0;
    } else if (!contended_) {
        contended_ = true;
        waiting_since_ = at;
        if (realtime_waits(*resident_)) {
            boundaries_left_ = timing::kRealtimeBoundaries;
            switch_at_ = kNever;
        } else {
            // Those who waited already when the group came in have been noticed before.
            const Time noticed = at == slice_start_ ? at : at + timing::kNotice;
            switch_at_ = gives_way(std::max(noticed, slice_end(at)));
        }
    }
}

Time Runlist::next_event() const {
    Time next = std::min(switch_done_, switch_at_);
    for (const Change& change : changes_) next = std::min(next, change.at);
    if (const Work* work = current_work()) {
        next = std::min(next, std::max(accrued_to_, restored_at_) + work->total() - work->done);
        next = std::min(next, wave_boundary());
    }
    return next;
}

void Runlist::advance(Time to) {
    for (Time at = next_event(); at <= to; at = next_event()) {
        const Time boundary = wave_boundary();
        accrue(at);
        now_ = std::max(now_, at);
        apply_changes(at);
        if (switch_done_ <= at) end_switch(at);
        if (const Work* work = current_work(); work && work->done >= work->total() && at >= restored_at_) {
            complete_current(at);
        } else if (work && boundary <= at) {
            Group& group = groups_.at(*resident_);
            listener_.on_progress(*group.current, work->fraction());
            group.current.reset();
        }
        if (resident_ && switch_at_ <= at) begin_switch(at);
        reschedule(at);
    }
}

Time Runlist::earliest_completion(QueueId id) const {
    const Queue& queue = queues_.at(id);
    if (!queue.work) return kNever;
    const Group& group = groups_.at(queue.group);
    if (queue.work->holds) return kNever;
    const Time left = queue.work->total() - queue.work->done;
    if (resident_ == queue.group && !queue.unseen) return std::max({now_, accrued_to_, restored_at_}) + left;
    if (!(group.enabled >> (queue.channel & 31) & 1)) {
        // Until somebody asks for it nothing enables it, and the device need not be awake for it.
        Time enabled = kNever;
        for (const Change& change : changes_)
            if (change.kind == Change::kEnable && change.group == queue.group) enabled = std::min(enabled, change.at);
        return enabled == kNever ? kNever : std::max(now_, enabled) + left;
    }
    if (switch_done_ != kNever) return switch_done_ + timing::kRestore + left;
    const Time leaves = resident_ ? std::max(now_, std::min(switch_at_, next_event())) : now_;
    if (leaves == kNever) return kNever;
    return leaves + (timing::kSwitchGap - timing::kCtaSaving) + timing::kRestore + left;
}

Time Runlist::executing_from(QueueId id) const {
    const Queue& queue = queues_.at(id);
    return resident_ == queue.group && ready(queue) ? restored_at_ : kNever;
}

}  // namespace emulator
