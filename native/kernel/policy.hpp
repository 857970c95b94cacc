// The policy map: which entry names the caller, and what that forbids. One function judges, for who refuses a request
// before the driver has it, and for who sees that it was done.
#pragma once

#include "kernel/common.hpp"

namespace runlist::kernel {
namespace {

constexpr std::uint64_t kMillisecondNs = 1'000'000;
constexpr std::uint32_t kCombinations = 8;

ALWAYS const Force* in_force() { return find<Force>(&force, std::uint32_t{0}); }

// Who changes slices for a living: the daemon, and those that undo what it did.
ALWAYS bool is_exempt(std::uint32_t pid) {
    const Settings* set = configured();
    return !set || set->own == pid || find<std::uint32_t>(&exempt, pid) != nullptr;
}

// The first entry that names the caller, in their order; most look-ups are left out, for no key has that combination.
ALWAYS const Policy* entry_of_caller() {
    const Force* now = in_force();
    if (!now || now->which == 0) return nullptr;
    const Policy* first = nullptr;
    for (std::uint32_t which = 1; which < kCombinations; ++which) {
        if ((now->which & 1u << which) == 0) continue;
        PolicyKey key{};
        key.which = which;
        key.generation = now->generation;
        if ((which & kByCgroup) != 0) key.cgroup = current_cgroup();
        if ((which & kByUser) != 0) key.user = static_cast<std::uint32_t>(current_user_and_group());
        if ((which & kByComm) != 0) current_name(key.comm, sizeof key.comm);
        const auto* found = find<Policy>(&policy, key);
        if (found && (!first || found->order < first->order)) first = found;
    }
    return first;
}

// Does an entry forbid a control with these flags, or making an object of this kind? `object` is what the control is
// for. A group's own slices may be set while it is new: CUDA does that. A process without a record has no groups to
// count: there was no room for it.
ALWAYS Refusal judged(const Policy& entry, std::uint32_t flags, Kind kind, const ObjectKey& object,
                      const Process* process, std::uint64_t at_ns) {
    if ((entry.flags & kRefuseSlices) != 0 && (flags & kWatchOwn) != 0) {
        const Settings* set = configured();
        if (!set) return Refusal::kNone;
        const auto* group = find<Group>(&groups, object);
        if (!group || at_ns >= group->made_ns + set->settle_ms * kMillisecondNs) return Refusal::kSlices;
    }
    if ((entry.flags & kRefuseGroups) != 0 && kind == Kind::kGroup &&
        (!process || process->groups >= entry.most_groups))
        return Refusal::kGroups;
    return Refusal::kNone;
}

ALWAYS void count_refusal(std::uint32_t why) {
    RefusalKey key{};
    key.pid = current_pid();
    key.why = static_cast<Refusal>(why);
    if (auto* known = find<std::uint64_t>(&refusals, key))
        __sync_fetch_and_add(known, 1);
    else
        keep(&refusals, key, std::uint64_t{1});
}

// It was done all the same.
ALWAYS void forbidden(const Told& told) {
    count(Counter::kForbidden);
    count_refusal(told.parent);
    tell(told);
}

}  // namespace
}  // namespace runlist::kernel
