#include "arrivals/arrivals.hpp"

#include <algorithm>
#include <array>

#include "arrivals/learnt.hpp"
#include "arrivals/notes.hpp"
#include "arrivals/sockets.hpp"
#include "core/guest.hpp"
#include "core/pages.hpp"
#include "core/relaxed.hpp"
#include "region/process.hpp"

namespace runlist::arrivals {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kLeadsNs = 50 * kMillisecond;        // what is not followed by work so soon led nowhere
constexpr std::int64_t kSameNs = 5 * kMillisecond;          // what is read from a socket so soon is the same message
constexpr std::int64_t kIdleNs = 1 * kMillisecond;          // a shorter pause is one within a request
constexpr std::int64_t kAskedNs = 2'000 * kMillisecond;     // for how long one learns that was asked
constexpr std::int64_t kAskedAgainNs = 500 * kMillisecond;  // not noted more often
constexpr std::size_t kWakesBytes = 64;                     // threads that wake one another write no more at once

// A child of fork finds it empty.
struct State {
    static constexpr unsigned kNotes = 64;

    Sockets sockets;
    Learnt learnt;
    std::array<Note, kNotes> notes;
    std::atomic<std::uint32_t> written;  // notes so far
};

constinit std::atomic<State*> state{nullptr};

// What came in last, in one word.
struct Pending {
    std::uint32_t at_us;  // 31 bits of it
    std::uint16_t fd;     // its lower half
    std::uint8_t note;    // which one of the state's
    bool open;            // what is read next may belong to it
    bool said;            // it was announced
    bool peeked;          // it is still to be read

    static constexpr std::uint32_t kTimes = (1u << 31) - 1;

    static Pending of(std::uint64_t word) {
        return {static_cast<std::uint32_t>(word >> 33),
                static_cast<std::uint16_t>(word >> 17),
                static_cast<std::uint8_t>(word >> 3),
                (word & 4) != 0,
                (word & 2) != 0,
                (word & 1u << 11) != 0};
    }

    std::uint64_t word() const {  // never 0
        return std::uint64_t{at_us & kTimes} << 33 | std::uint64_t{fd} << 17 | std::uint64_t{note} << 3 |
               (peeked ? 1u << 11 : 0u) | (open ? 4u : 0u) | (said ? 2u : 0u) | 1;
    }

    std::int64_t age_ns(std::uint32_t now_us) const { return ((now_us - at_us) & kTimes) * std::int64_t{1000}; }
};

std::uint32_t microseconds(std::int64_t nanoseconds) {
    return static_cast<std::uint32_t>(nanoseconds / 1000) & Pending::kTimes;
}

void settle(State& known, const Pending& pending, std::int64_t age_ns) {
    const Note& note = known.notes[pending.note % State::kNotes];
    if (age_ns <= kLeadsNs) {
        note.led_to_work(known.learnt, age_ns);
    } else {
        note.led_nowhere(known.learnt);
    }
}

// The same byte again and again: single ones, of which several were read at once.
bool is_a_wake(const unsigned char* bytes, std::size_t count) {
    return count <= kWakesBytes && std::all_of(bytes, bytes + count, [&](unsigned char one) { return one == *bytes; });
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

// Where somebody wants to hear of what comes in now.
State* listening(activity::Own& own, std::int64_t now, std::uint64_t& watch) {
    region::Slot* slot = own.slot.load(std::memory_order_acquire);
    if (slot == nullptr) return nullptr;
    watch = slot->watch.load(kRelaxed);
    if (!is_wanted(own, watch, now) || !is_idle(own, *slot, watch, now)) return nullptr;
    return made<State, Unwiped::kRefused>(state);
}

struct Message {
    int fd;
    Door door;
    const unsigned char* bytes;
    std::size_t count;
    bool peeked;  // the program has not read it
};

// False where it is none that counts.
bool note(activity::Own& own, State& known, const Message& message, std::uint64_t watch, std::int64_t now) {
    if (is_private(message.door) && is_a_wake(message.bytes, message.count)) return false;
    Pending one{.at_us = microseconds(now),
                .fd = static_cast<std::uint16_t>(message.fd),
                .note = 0,
                .open = true,
                .said = false,
                .peeked = message.peeked};
    std::int64_t age = 0;
    bool goes_on = false;
    if (const std::uint64_t word = own.pending.load(kRelaxed); word != 0) {
        Pending before = Pending::of(word);
        age = before.age_ns(one.at_us);
        goes_on = before.fd == one.fd && age <= (before.peeked ? kLeadsNs : kSameNs);
        if (goes_on && before.peeked) {  // it was looked at
            before.peeked = message.peeked;
            own.pending.store(before.word());
            return true;
        }
        if (goes_on && !before.open) return true;
        if (goes_on) {
            before.peeked = message.peeked;
            one = before;
        }
        if (age > kLeadsNs) settle(known, before, age);  // else nobody knows yet, and the newest counts
    }
    if (!goes_on) one.note = static_cast<std::uint8_t>(known.written.fetch_add(1, kRelaxed) % State::kNotes);
    Note& note = known.notes[one.note];
    if (goes_on) {
        note.go_on(known.learnt, message.door, message.bytes, message.count);
    } else {
        note.begin(known.learnt, message.door, message.bytes, message.count);
    }
    std::int64_t lead_ns = 0;
    const bool leads = note.leads_to_work(known.learnt, lead_ns);
    const bool news = leads && !one.said && (watch & region::kAnnouncements) != 0 && is_ours(own);
    one.open = !goes_on;
    one.said |= news;
    own.pending.store(one.word());
    if (news) {
        if (goes_on) lead_ns = std::max<std::int64_t>(lead_ns - age, 0);
        activity::announce(own, lead_ns);
        touch(lead_ns);
    }
    return true;
}

}  // namespace

bool is_ours(const activity::Own& own) { return own.pid.load(kRelaxed) == region::own_pid(); }

void came(activity::Own& own, int fd, const void* bytes, std::size_t count) {
    const std::int64_t now = monotonic_ns();
    std::uint64_t watch = 0;
    State* known = count == 0 ? nullptr : listening(own, now, watch);
    if (known == nullptr) return;
    const Door door = known->sockets.door(fd, now);
    if (door != 0)
        note(own, *known,
             {.fd = fd,
              .door = door,
              .bytes = static_cast<const unsigned char*>(bytes),
              .count = count,
              .peeked = false},
             watch, now);
}

bool readable(activity::Own& own, int fd) {
    const std::int64_t now = monotonic_ns();
    std::uint64_t watch = 0;
    State* known = listening(own, now, watch);
    if (known == nullptr) return true;  // nor for any other
    const Door door = known->sockets.door(fd, now);
    std::array<unsigned char, Note::kMost> bytes;
    const std::size_t count = door == 0 ? 0 : Sockets::peek(fd, bytes.data(), bytes.size());
    if (count == 0) return false;
    return note(own, *known, {.fd = fd, .door = door, .bytes = bytes.data(), .count = count, .peeked = true}, watch,
                now);
}

void accepted(int fd) {
    if (State* known = made<State, Unwiped::kRefused>(state)) known->sockets.accepted(fd);
}

void worked(activity::Own& own) {
    const std::uint64_t word = own.pending.exchange(0);
    State* known = state.load(std::memory_order_acquire);
    if (word == 0 || known == nullptr) return;
    const Pending pending = Pending::of(word);
    settle(*known, pending, pending.age_ns(microseconds(monotonic_ns())));
}

}  // namespace runlist::arrivals
