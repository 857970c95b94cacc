#include "arrivals/arrivals.hpp"

#include <algorithm>

#include "arrivals/learnt.hpp"
#include "arrivals/sockets.hpp"
#include "core/guest.hpp"
#include "core/pages.hpp"
#include "region/process.hpp"

namespace runlist::arrivals {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kLeadsNs = 50 * kMillisecond;         // what is not followed by work so soon led nowhere
constexpr std::int64_t kSameNs = 5 * kMillisecond;           // what is read from a socket so soon is the same message
constexpr std::int64_t kIdleNs = 1 * kMillisecond;           // a shorter pause is one within a request
constexpr std::int64_t kAskedNs = 2'000 * kMillisecond;      // for how long one learns that was asked
constexpr std::int64_t kAskedAgainNs = 500 * kMillisecond;   // not noted more often
constexpr std::size_t kFirstBytes = 16;                      // that tell messages apart
constexpr std::uint32_t kFew = 3, kMajority = 3;             // hits, and hits for each miss
constexpr std::uint32_t kManyOfAll = 8, kMajorityOfAll = 8;  // the same for a door where messages are all different

// A child of fork finds it empty.
struct State {
    Sockets sockets;
    Learnt learnt;
};

constinit std::atomic<State*> state{nullptr};

// What came in last, in one word.
struct Pending {
    std::uint32_t at_us;  // 31 bits of it
    std::uint16_t fd;     // its lower half
    Learnt::Place own;
    Learnt::Place of_door;

    static constexpr std::uint32_t kTimes = (1u << 31) - 1;

    static Pending of(std::uint64_t word) {
        return {static_cast<std::uint32_t>(word >> 33), static_cast<std::uint16_t>(word >> 17),
                static_cast<Learnt::Place>(word >> 9), static_cast<Learnt::Place>(word >> 1)};
    }

    std::uint64_t word() const {  // never 0
        return std::uint64_t{at_us & kTimes} << 33 | std::uint64_t{fd} << 17 | std::uint64_t{own} << 9 |
               std::uint64_t{of_door} << 1 | 1;
    }

    std::int64_t age_ns(std::uint32_t now_us) const { return ((now_us - at_us) & kTimes) * std::int64_t{1000}; }
};

std::uint32_t microseconds(std::int64_t nanoseconds) {
    return static_cast<std::uint32_t>(nanoseconds / 1000) & Pending::kTimes;
}

std::uint64_t kind_of(Door door, const unsigned char* bytes, std::size_t count) {
    std::uint64_t sum = 0xCBF2'9CE4'8422'2325 ^ door;
    for (std::size_t at = 0; at < count; ++at) sum = (sum ^ bytes[at]) * 0x100'0000'01B3;
    sum = (sum ^ count) * 0x9E37'79B9'7F4A'7C15;
    return sum | 1;
}

void settle(Learnt& learnt, const Pending& pending, std::int64_t age_ns) {
    for (const Learnt::Place place : {pending.own, pending.of_door}) {
        if (age_ns <= kLeadsNs) {
            learnt.led_to_work(place, age_ns);
        } else {
            learnt.led_nowhere(place);
        }
    }
}

// Whether work is to be expected, and how soon. By what messages of this kind led to, and where there were few of them
// by what came in at the same door.
bool leads_to_work(const Learnt& learnt, const Pending& one, std::int64_t& lead_ns) {
    const Learnt::Record own = learnt.at(one.own);
    const Learnt::Record all = learnt.at(one.of_door);
    const bool known = own.hits + own.misses >= kFew;
    lead_ns = known ? own.lead_ns : all.lead_ns;
    return known ? own.hits >= kFew && own.hits >= kMajority * own.misses
                 : all.hits >= kManyOfAll && all.hits >= kMajorityOfAll * all.misses;
}

// Whether a request that comes in now is not part of one that is at work.
bool is_idle(const activity::Own& own, const region::Slot& slot, std::uint64_t watch, std::int64_t now) {
    if ((watch & region::kWork) != 0) return true;  // nothing was submitted since that was written
    return slot.activity.waiting.load(kRelaxed) == 0 && own.first_ns.load(kRelaxed) == 0 &&
           now - own.quiet_ns.load(kRelaxed) >= kIdleNs;
}

bool is_wanted(activity::Own& own, std::uint64_t watch, std::int64_t now) {
    const std::int64_t asked = own.asked_ns.load(kRelaxed);
    if ((watch & region::kAnnouncements) != 0) {
        if (now - asked > kAskedAgainNs) own.asked_ns.store(now, kRelaxed);
        return true;
    }
    if (now - asked <= kAskedNs) return true;
    own.asked_ns.store(0, kRelaxed);
    return false;
}

}  // namespace

bool is_ours(const activity::Own& own) { return own.pid.load(kRelaxed) == region::own_pid(); }

void came(activity::Own& own, int fd, const void* bytes, std::size_t count) {
    region::Slot* slot = own.slot.load(std::memory_order_acquire);
    if (slot == nullptr || count == 0) return;
    const std::int64_t now = monotonic_ns();
    const std::uint64_t watch = slot->watch.load(kRelaxed);
    if (!is_wanted(own, watch, now) || !is_idle(own, *slot, watch, now)) return;
    State* known = made<State, Unwiped::kRefused>(state);
    if (known == nullptr) return;
    const Door door = known->sockets.door(fd, now);
    if (door == 0 || (door == Sockets::kUnnamed && count == 1)) return;
    const std::uint32_t now_us = microseconds(now);
    if (const std::uint64_t word = own.pending.load(kRelaxed); word != 0) {
        const Pending before = Pending::of(word);
        const std::int64_t age = before.age_ns(now_us);
        if (before.fd == static_cast<std::uint16_t>(fd) && age <= kSameNs) return;
        if (age > kLeadsNs) settle(known->learnt, before, age);  // else nobody knows yet, and the newest counts
    }
    const auto* text = static_cast<const unsigned char*>(bytes);
    const Pending one{.at_us = now_us,
                      .fd = static_cast<std::uint16_t>(fd),
                      .own = known->learnt.find(kind_of(door, text, std::min(count, kFirstBytes))),
                      .of_door = known->learnt.find(kind_of(door, nullptr, 0))};
    std::int64_t lead_ns = 0;
    const bool leads = leads_to_work(known->learnt, one, lead_ns);
    own.pending.store(one.word());
    if (!leads || (watch & region::kAnnouncements) == 0 || !is_ours(own)) return;
    activity::announce(own, lead_ns);
    touch(lead_ns);
}

void accepted(int fd) {
    if (State* known = made<State, Unwiped::kRefused>(state)) known->sockets.accepted(fd);
}

void worked(activity::Own& own) {
    const std::uint64_t word = own.pending.exchange(0);
    State* known = state.load(std::memory_order_acquire);
    if (word == 0 || known == nullptr) return;
    const Pending pending = Pending::of(word);
    settle(known->learnt, pending, pending.age_ns(microseconds(monotonic_ns())));
}

}  // namespace runlist::arrivals
