// What the programs have in common: maps by type, who it is, and telling of it.
#pragma once

#include "kernel/helpers.hpp"
#include "kernel/maps.hpp"
#include "protocol/kernel.autogen.hpp"

namespace runlist::kernel {
namespace {

#define ALWAYS static inline __attribute__((always_inline))

constexpr std::uint64_t kSecondNs = 1'000'000'000;

template <typename Value, typename Key>
ALWAYS Value* find(const void* map, const Key& key) {
    return static_cast<Value*>(lookup(map, &key));
}

ALWAYS void count(Counter which) {
    if (auto* counter = find<std::uint64_t>(&counters, static_cast<std::uint32_t>(which))) *counter += 1;  // per CPU
}

template <typename Key, typename Value>
ALWAYS void keep(const void* map, const Key& key, const Value& value) {
    if (update(map, &key, &value, 0) != 0) count(Counter::kFull);
}

ALWAYS const Settings* configured() { return find<Settings>(&settings, std::uint32_t{0}); }

// ---- bounds
// ------------------------------------------------------------------------------------------------------------

// Whose room in the maps the caller takes: its user's, or, if that is root, its cgroup's.
ALWAYS std::uint64_t current_owner() {
    const auto uid = static_cast<std::uint32_t>(current_user_and_group());
    return uid != 0 ? uid : current_cgroup() | 1ull << 63;
}

ALWAYS Owner* owner_for(std::uint64_t number) {
    if (auto* known = find<Owner>(&owners, number)) return known;
    const Owner nothing{};
    update(&owners, &number, &nothing, kIfMissing);
    return find<Owner>(&owners, number);
}

// Enters something in a map of which one owner may have so much, and counts it.
template <auto kWhat, typename Key, typename Value>
ALWAYS bool keep_of(std::uint32_t most, const void* map, const Key& key, const Value& value) {
    if (auto* known = find<Value>(map, key)) {
        const auto counted_for = known->owner;
        *known = value;
        known->owner = counted_for;
        return true;
    }
    Owner* owner = owner_for(value.owner);
    const auto* gone = find<Owner>(&swept, value.owner);
    // Both wrap, and what was counted may have been forgotten.
    if (owner &&
        static_cast<std::int32_t>(owner->*kWhat - (gone ? gone->*kWhat : 0)) < static_cast<std::int32_t>(most) &&
        update(map, &key, &value, kIfMissing) == 0) {
        __sync_fetch_and_add(&(owner->*kWhat), 1);
        return true;
    }
    count(Counter::kFull);
    return false;
}

template <auto kWhat, typename Key>
ALWAYS bool take_of(std::uint64_t number, const void* map, const Key& key) {
    if (erase(map, &key) != 0) return false;
    if (auto* owner = find<Owner>(&owners, number)) __sync_fetch_and_add(&(owner->*kWhat), -1);
    return true;
}

// ---- who it is
// ---------------------------------------------------------------------------------------------------------

ALWAYS std::uint32_t current_pid() { return static_cast<std::uint32_t>(current_process_and_thread() >> 32); }

// The record of the current process; a new one for who has none, if there is room.
ALWAYS Process* process_of(std::uint32_t pid) {
    if (auto* known = find<Process>(&processes, pid)) return known;
    Process made{};
    made.cgroup = current_cgroup();
    made.first_ns = now_ns();
    made.uid = static_cast<std::uint32_t>(current_user_and_group());
    current_name(made.name, sizeof made.name);
    made.owner = current_owner();
    if (!keep_of<&Owner::processes>(kMostProcesses, &processes, pid, made)) return nullptr;
    MemberKey member{};
    member.cgroup = made.cgroup;
    member.pid = pid;
    keep(&members, member, made.first_ns);
    return find<Process>(&processes, pid);
}

constexpr std::uint64_t kOfProcess = 1ull << 62;

template <auto kSort>
ALWAYS bool spend(std::uint64_t whose, std::uint32_t most) {
    auto* budget = find<Budget>(&budgets, whose);
    if (!budget) {
        const Budget nothing{};
        update(&budgets, &whose, &nothing, kIfMissing);
        budget = find<Budget>(&budgets, whose);
        if (!budget) return false;
    }
    const std::uint64_t now = now_ns();
    if (now - budget->second_ns >= kSecondNs) {
        *budget = Budget{};
        budget->second_ns = now;
    }
    if (budget->*kSort >= most) return false;
    __sync_fetch_and_add(&(budget->*kSort), 1);
    return true;
}

// May it have another request of a sort captured in this second? Its owner may have twice as many processes may.
template <auto kSort = &Budget::others>
ALWAYS bool within_budget(Process& process, std::uint32_t pid) {
    const Settings* set = configured();
    if (set && spend<kSort>(pid | kOfProcess, set->budget) && spend<kSort>(process.owner, 2 * set->budget)) {
        __sync_fetch_and_add(&process.requests, 1);
        return true;
    }
    __sync_fetch_and_add(&process.held_back, 1);
    count(Counter::kHeldBack);
    return false;
}

// ---- events
// ------------------------------------------------------------------------------------------------------------

struct Told {
    What what;
    Kind kind;
    std::int32_t fd;
    std::uint32_t client;
    std::uint32_t parent;
    std::uint32_t object;
    std::uint32_t class_;
    std::uint32_t entry = 0;
    std::uint32_t gpu = 0;
};

ALWAYS void tell(const Told& told) {
    auto* event = static_cast<Event*>(ring_reserve(&events, sizeof(Event), 0));
    if (!event) {
        count(Counter::kDropped);
        return;
    }
    const std::uint64_t who = current_process_and_thread();
    event->what = told.what;
    event->kind = told.kind;
    event->time_ns = now_ns();
    event->cgroup = current_cgroup();
    event->pid = static_cast<std::uint32_t>(who >> 32);
    event->tid = static_cast<std::uint32_t>(who);
    event->uid = static_cast<std::uint32_t>(current_user_and_group());
    event->fd = told.fd;
    event->client = told.client;
    event->parent = told.parent;
    event->object = told.object;
    event->class_ = told.class_;
    event->entry = told.entry;
    event->gpu = told.gpu;
    current_name(event->name, sizeof event->name);
    ring_submit(event, 0);
    count(Counter::kEvents);
}

// ---- classes

// A loop's number, to be put on the stack. Before Linux 6.3 the verifier does not know numbers again that it finds
// there, and would take the loop for one without end: the loop goes by the register that the compiler now leaves it.
ALWAYS std::uint32_t copied(std::uint64_t number) {
    asm volatile("" : "+r"(number));
    return static_cast<std::uint32_t>(number);
}

ALWAYS Kind kind_of(std::uint32_t class_) {
    for (std::uint64_t at = 0; at < kMaxRules; ++at) {
        const auto* rule = find<Rule>(&rules, copied(at));
        if (!rule || rule->mask == 0) break;
        if ((class_ & rule->mask) == rule->value && class_ >= rule->least) return rule->kind;
    }
    return Kind::kOther;
}

}  // namespace
}  // namespace runlist::kernel
