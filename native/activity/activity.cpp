#include "activity/activity.hpp"

#include <linux/futex.h>

#include <climits>

#include "core/guest.hpp"
#include "core/pages.hpp"
#include "region/process.hpp"
#include "region/quota.hpp"

namespace runlist::activity {
namespace {

constinit std::atomic<Cleanup::Push*> push{nullptr};
constinit std::atomic<Cleanup::Pop*> pop{nullptr};

region::Slot* claim(Own& mine) {
    region::Slot* found = mine.slot.load(std::memory_order_acquire);
    if (found != nullptr) return found;
    found = region::quota.own_slot();
    if (found == nullptr) found = &mine.nobodys;  // else each launch would look for one
    mine.pid.store(region::own_pid(), std::memory_order_relaxed);
    mine.slot.store(found, std::memory_order_release);
    return found;
}

// Whether the daemon waited to hear of something; from now on it does not.
bool take_watch(Own& mine) {
    region::Slot* slot = mine.slot.load(std::memory_order_acquire);
    if (slot == nullptr || slot->watch.exchange(0) == 0) return false;
    // Its lower half is at its address: little-endian. First whoever acts at once, then whoever decides.
    call(SYS_futex, &slot->watch, long{FUTEX_WAKE}, long{INT_MAX});
    return true;
}

void add(std::atomic<std::uint64_t>& sum, std::int64_t nanoseconds) {
    if (nanoseconds > 0) sum.fetch_add(static_cast<std::uint64_t>(nanoseconds), std::memory_order_relaxed);
}

}  // namespace

constinit std::atomic<Own*> own{nullptr};
constinit std::atomic<std::int32_t> captures{0};
constinit thread_local bool waiting = false;

void start(const Cleanup& cleanup) {
    if (!region::quota.on()) return;
    if (cleanup.push != nullptr && cleanup.pop != nullptr) {
        pop.store(cleanup.pop);
        push.store(cleanup.push);
    }
    if (Own* mine = made<Own, Unwiped::kRefused>(own)) claim(*mine);
}

bool Own::finish(Left left) {
    region::Slot* mine = claim(*this);
    if (left == Left::kAll) mine->activity.work.fetch_add(1);
    if (first_ns.load(std::memory_order_relaxed) == 0) first_ns.store(monotonic_ns(), std::memory_order_relaxed);
    return (mine->watch.load() & region::kWork) != 0;
}

void say_work(Own& mine) {
    if (take_watch(mine)) on_work();
}

void announce(Own& mine, std::int64_t lead_ns) {
    region::Slot* slot = mine.slot.load(std::memory_order_acquire);
    if (slot == nullptr) return;
    slot->activity.before.store(slot->activity.work.load(), std::memory_order_relaxed);
    if (lead_ns > kAtOnceNs || take_watch(mine)) on_announcement(lead_ns);
}

void waited(Own& mine, region::Slot& slot, std::int64_t began_ns) {
    const std::int64_t now = monotonic_ns();
    // What another thread submitted first during the wait is behind its beginning, and adds nothing.
    const std::int64_t first = mine.first_ns.exchange(0, std::memory_order_relaxed);
    if (first != 0) {
        add(slot.activity.launching_ns, began_ns - first);
        slot.activity.waits.fetch_add(1, std::memory_order_relaxed);
    }
    add(slot.activity.waited_ns, now - began_ns);
    mine.quiet_ns.store(now, std::memory_order_relaxed);
}

Wait::Wait(Own& mine, std::int64_t least_ns)
    : mine_(mine), slot_(claim(mine)), least_ns_(least_ns), began_(monotonic_ns()) {
    waiting = true;
    slot_->activity.waiting.fetch_add(1);
    place_.routine = nullptr;
    if (Cleanup::Push* there = push.load()) there(&place_, end, this);
}

Wait::~Wait() {
    if (place_.routine != nullptr) pop.load()(&place_, 0);
    end(this);
}

void Wait::end(void* wait) {
    Wait& one = *static_cast<Wait*>(wait);
    waiting = false;
    // In a child of a fork that came meanwhile the wait is its parent's.
    if (one.mine_.slot.load(std::memory_order_acquire) != one.slot_) return;
    if (one.least_ns_ == 0 || monotonic_ns() - one.began_ >= one.least_ns_) waited(one.mine_, *one.slot_, one.began_);
    one.slot_->activity.waiting.fetch_sub(1);  // last: who finds nobody waiting finds the time, too
}

}  // namespace runlist::activity
