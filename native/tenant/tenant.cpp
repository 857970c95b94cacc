#include "tenant/tenant.hpp"

#include <cerrno>

#include "core/guest.hpp"

namespace runlist {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kInForceNs = tenant::kInForceMs * kMillisecond;
constexpr std::int64_t kRoomNs = tenant::kRoomMs * kMillisecond;
constexpr std::int64_t kLookAgainNs = tenant::kLookAgainMs * kMillisecond;
constexpr std::uint32_t kNearby = 1u << 30;
constexpr std::uint32_t kAnswerable = 64;               // messages: an answer to none of the last ones is none
constexpr std::int64_t kLookAtOthersNs = kMillisecond;  // another thread may read our answer

// Where numbers begin. A stranger in a network of its own may take our name there, and have the daemon answer to it
// here.
std::uint32_t anywhere() {
    std::uint32_t number = 0;
    constexpr long kNow = 1;  // GRND_NONBLOCK
    if (call(SYS_getrandom, &number, sizeof(number), kNow) != sizeof(number)) {
        number = static_cast<std::uint32_t>(monotonic_ns());
    }
    return number;
}

}  // namespace

int Tenant::begin(int priority) {
    const Caller caller = Caller::here();
    if (const int error = enter(caller)) return error;
    if (!state_.segments.begin(caller.thread, priority)) {
        lock_.release();
        return -ENOSPC;
    }
    const std::uint32_t before = state_.sequence;
    const int result = tell(kRoomNs);
    const Link link = state_.link;
    const std::uint32_t sequence = state_.sequence;
    const bool wait_for_it = result == 0 && sequence != before && monotonic_ns() >= state_.wait_from_ns;
    lock_.release();
    if (wait_for_it) wait(link, sequence);
    return result;
}

int Tenant::end() {
    const Caller caller = Caller::here();
    if (const int error = enter(caller)) return error;
    const int result = state_.segments.end(caller.thread) ? tell(kRoomNs) : -EINVAL;
    lock_.release();
    return result;
}

int Tenant::in_force() {
    const Caller caller = Caller::here();
    if (const int error = enter(caller)) return error;
    const std::optional<std::int32_t> mine = state_.segments.priority(caller.thread);
    while (hear(state_.link, state_.sequence, 0)) {
    }
    const Answer newest = answered();
    const bool told = state_.linked && state_.link.is_open() && state_.known && newest.sequence == state_.told;
    const int result = mine ? told && newest.in_force == 1 && *state_.known >= *mine : -EINVAL;
    lock_.release();
    return result;
}

int Tenant::say(Kind kind, std::uint64_t nanoseconds, std::int64_t patience_ns) {
    if (const int error = enter(Caller::here(), patience_ns)) return error;
    int result = tell(0);  // first what was missed
    if (result == 0) result = send({.kind = kind, .nanoseconds = nanoseconds}, 0);
    lock_.release();
    return result;
}

// Takes the lock. A child of fork starts anew: the socket and the segments that it finds are its parent's.
int Tenant::enter(Caller caller, std::int64_t patience_ns) {
    if (const int error = lock_.acquire(caller, patience_ns)) return error;
    if (state_.space != caller.space) {
        state_.link.close();
        state_ = State{.space = caller.space, .sequence = anywhere()};
        answered_.store({}, std::memory_order_relaxed);
    }
    return 0;
}

// Makes the daemon know the priority that holds.
int Tenant::tell(std::int64_t patience_ns) {
    if (state_.linked && !state_.link.is_open()) state_.linked = false;
    if (!state_.linked) {
        const std::int64_t now = monotonic_ns();
        if (now < state_.look_at_ns) return -ENOTCONN;
        state_.known.reset();
        state_.linked = state_.link.open();
        if (!state_.linked) {
            state_.look_at_ns = now + kLookAgainNs;
            return -ENOTCONN;
        }
    }
    const std::optional<std::int32_t> priority = state_.segments.priority();
    if (priority == state_.known) return 0;
    while (hear(state_.link, state_.sequence, 0)) {  // old answers leave no room for the one to this
    }
    if (state_.sequence - answered().sequence > kNearby) {
        answered_.store({state_.sequence}, std::memory_order_relaxed);  // numbers wrap: keep the two near each other
    }
    const Kind kind = priority ? Kind::kSegmentBegin : Kind::kSegmentEnd;
    const int result = send({.kind = kind, .priority = priority.value_or(0)}, patience_ns);
    if (result == 0) {
        state_.known = priority;
        state_.told = state_.sequence;
    }
    return result;
}

int Tenant::send(Record record, std::int64_t patience_ns) {
    if (++state_.sequence == 0) ++state_.sequence;
    record.sequence = state_.sequence;
    const int result = state_.link.send(record, patience_ns);
    if (result == 0 || result == -EAGAIN) return result;
    state_.link.close();
    state_.linked = false;
    return -ENOTCONN;
}

// Without the lock: other threads go on, may read our answer, and may close the link.
void Tenant::wait(const Link& link, std::uint32_t sequence) {
    const std::int64_t until = monotonic_ns() + kInForceNs;
    while (!is_answered(sequence)) {
        if (monotonic_ns() >= until) {
            const Caller caller = Caller::here();
            if (lock_.acquire(caller) == 0) {
                state_.wait_from_ns = monotonic_ns() + kLookAgainNs;
                lock_.release();
            }
            return;
        }
        hear(link, sequence, kLookAtOthersNs);
    }
}

// Takes one answer. False when there is none. `last` is the number of a message that was sent lately.
bool Tenant::hear(const Link& link, std::uint32_t last, std::int64_t patience_ns) {
    const Answer answer = link.receive(patience_ns);
    const bool is_ours = last + kAnswerable - answer.sequence <= 2 * kAnswerable;
    Answer newest = answered();
    while (answer.sequence != 0 && is_ours && static_cast<std::int32_t>(answer.sequence - newest.sequence) >= 0 &&
           !answered_.compare_exchange_weak(newest, answer, std::memory_order_relaxed)) {
    }
    return answer.sequence != 0;
}

Answer Tenant::answered() const { return answered_.load(std::memory_order_relaxed); }

// A later message that was answered replaced this one.
bool Tenant::is_answered(std::uint32_t sequence) const {
    return static_cast<std::int32_t>(answered().sequence - sequence) >= 0;
}

}  // namespace runlist
