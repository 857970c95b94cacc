#include "region/slots.hpp"

#include <algorithm>
#include <utility>

#include "region/process.hpp"

namespace runlist::region {
namespace {

constinit void* locks[kSlots]{};  // of the slots that this process claimed

void empty(Use (&use)[kDevices]) {
    for (Use& of_device : use) {
        of_device.asking.store(0);
        of_device.held.store(0);
        of_device.overhead.store(0);
        of_device.gpu_ns.store(0);
    }
}

void empty(Activity& activity) {
    activity.work.store(0);
    activity.waiting.store(0);
    activity.waited_ns.store(0);
    activity.launching_ns.store(0);
    activity.open.store(0);
    activity.ended.store(0);
    activity.before.store(0);
    activity.waits.store(0);
}

// Makes a slot free that `holder` has. The namespace goes last: it tells how the holder is judged.
void empty(Slot& slot, std::uint64_t holder) {
    empty(slot.use);
    empty(slot.activity);
    slot.clients.store(0);
    slot.watch.store(0);
    slot.start_time.store(0);
    slot.enforced.store(0);
    slot.image.store(0);
    slot.locked.store(0);
    slot.pid_namespace.store(0);
    slot.identity.compare_exchange_strong(holder, 0);
}

SlotState state_here(const Region& region, const Self& self) {
    return self.pid_namespace == region.header().pid_namespace ? SlotState::kClaimed : SlotState::kForeign;
}

// Whether the pid in a slot is of our own namespace, so that we can tell whether its process lives.
bool can_judge(const Region& region, const Self& self, const Slot& slot, std::uint64_t found) {
    std::uint64_t of = slot.pid_namespace.load();
    if (of == 0 && state_of(found) != SlotState::kForeign) of = region.header().pid_namespace;
    if (of == 0) return state_of(found) != SlotState::kForeign && self.pid_namespace == 0;
    return of == self.pid_namespace;
}

bool is_own(const Slot& slot, const Self& self, SlotState state) {
    return slot.identity.load() == identity(self.pid, state) && slot.start_time.load() == self.start_time &&
           slot.pid_namespace.load() == self.pid_namespace;
}

int claim_free(const Region& region, const Self& self) {
    for (int index = 0; index < static_cast<int>(kSlots); ++index) {
        Slot& slot = region.slot(index);
        std::uint64_t nobody = 0;
        void* page = nullptr;
        if (slot.identity.load() != 0) continue;
        const Locked locked = region.lock(index, page);
        if (locked == Locked::kTaken) continue;
        if (!slot.identity.compare_exchange_strong(nobody, identity(self.pid, state_here(region, self)))) {
            Region::unlock(page);
            continue;
        }
        locks[index] = page;
        slot.pid_namespace.store(self.pid_namespace);
        slot.start_time.store(self.start_time);
        slot.locked.store(locked == Locked::kOurs ? 1 : 0);
        slot.image.store(self.image);  // it last: the slot is complete
        std::atomic<std::uint32_t>& used = region.header().slots_used;
        const auto needed = static_cast<std::uint32_t>(index) + 1;
        for (std::uint32_t seen = used.load(); seen < needed && !used.compare_exchange_weak(seen, needed);) {
        }
        return index;
    }
    return -1;
}

bool reap(const Region& region, const Self& self, int index) {
    Slot& slot = region.slot(index);
    std::uint64_t found = slot.identity.load();
    if (found == 0 || pid_of(found) == 0) return false;
    const bool half_reaped = state_of(found) == SlotState::kReaped;
    const auto gone = [&] {
        const bool complete = slot.image.load() != 0;
        if (!half_reaped && complete && slot.locked.load() != 0) return !region.is_locked(index);
        if (can_judge(region, self, slot, found)) {
            return ended(self, pid_of(found), half_reaped ? 0 : slot.start_time.load());
        }
        // Without a lock nobody here can tell, unless its process was killed while it claimed it or gave it back.
        return (half_reaped || !complete) && !region.is_locked(index);
    };
    if (!gone()) return false;
    const std::uint64_t mine = identity(self.pid, SlotState::kReaped);
    std::uint64_t holder = found;
    if (!slot.identity.compare_exchange_strong(holder, mine)) return false;
    if (!gone()) {  // while we did not run it was taken back, and claimed by a new process of the same pid
        holder = mine;
        slot.identity.compare_exchange_strong(holder, found);
        return false;
    }
    empty(slot, mine);
    return true;
}

}  // namespace

int slots_used(const Region& region) { return static_cast<int>(std::min(region.header().slots_used.load(), kSlots)); }

int claim(const Region& region) {
    const Self self = Self::look();
    const SlotState state = state_here(region, self);
    for (int index = 0, used = slots_used(region); index < used; ++index) {
        const Slot& slot = region.slot(index);
        if (is_own(slot, self, state) && slot.image.load() == self.image) return index;
    }
    const int index = claim_free(region, self);
    return index < 0 && reap(region) > 0 ? claim_free(region, self) : index;
}

void release(const Region& region, int index) {
    Slot& slot = region.slot(index);
    empty(slot, slot.identity.load());
    Region::unlock(std::exchange(locks[index], nullptr));
}

void forget_old_image(const Region& region) {
    const std::int32_t pid = own_pid();
    for (int index = 0, used = slots_used(region); index < used; ++index) {
        Slot& slot = region.slot(index);
        if (pid_of(slot.identity.load()) != pid) continue;
        const Self self = Self::look();
        if (!is_own(slot, self, state_here(region, self)) || slot.image.load() == self.image) continue;
        // The lock went with the old program. Where nobody is named by more than a pid, another one may have this one.
        const bool its_own = slot.locked.load() != 0 ? !region.is_locked(index) : self.sees_processes;
        if (its_own) release(region, index);
    }
}

int reap(const Region& region) {
    const Self self = Self::look();
    int reaped = 0;
    for (int index = 0, used = slots_used(region); index < used; ++index) {
        if (reap(region, self, index)) ++reaped;
    }
    return reaped;
}

bool is_vacant(const Region& region) {
    const Self self = Self::look();
    for (int index = 0, used = slots_used(region); index < used; ++index) {
        if (counts(region.slot(index).identity.load()) && !reap(region, self, index)) return false;
    }
    return true;
}

}  // namespace runlist::region
