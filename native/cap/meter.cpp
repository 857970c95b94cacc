#include "cap/meter.hpp"

#include <algorithm>
#include <utility>

#include "cap/clock.hpp"
#include "cap/host.hpp"

namespace runlist::cap {
namespace {

constexpr std::int64_t kLongNs = 100 * kMicrosecond;       // work that has a bracket of its own
constexpr std::int64_t kBracketNs = 250 * kMicrosecond;    // what a bracket of short work holds
constexpr std::int64_t kPollNs = 20 * kMicrosecond;        // not more often
constexpr std::int64_t kLeadNs = 5 * kMicrosecond;         // what a launch takes the host at most; the rest is not ours
constexpr std::int64_t kFirstNs = 2'000 * kMillisecond;    // patience with work that was never measured before
constexpr std::int64_t kAgainNs = 250 * kMillisecond;      // with other work
constexpr std::int64_t kForgottenNs = 100 * kMillisecond;  // an open bracket that nobody came back to
constexpr std::int64_t kLostNs = 10'000 * kMillisecond;    // a launch that did not return: its thread left by a jump
constexpr std::int64_t kNotToBeHad = INT64_MAX;
constexpr int kInFlight = 64;  // launches that were not measured yet

std::int64_t nanoseconds(float milliseconds) {
    constexpr float kSane = 1e9F;  // false for what is no number, too
    return milliseconds > -kSane && milliseconds < kSane ? static_cast<std::int64_t>(double{milliseconds} * 1e6) : 0;
}

// Errors that say that this one thing cannot be done, in a context that is sound.
bool is_passing(CUresult result) {
    switch (result) {
        case CUDA_ERROR_OUT_OF_MEMORY:
        case CUDA_ERROR_INVALID_CONTEXT:
        case CUDA_ERROR_INVALID_HANDLE:
        case CUDA_ERROR_NOT_SUPPORTED:
            return true;
        default:
            return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
}

}  // namespace

Found Meter::poll(const Calls& calls, std::int64_t now) {
    Found found;
    if (off_ || now - polled_ < kPollNs) return found;
    polled_ = now;
    Bracket* longest = nullptr;  // of those that run and have passed their estimate; what runs beside it costs no more
    for (Track& track : tracks_) {
        while (track.oldest != 0 && !off_) {
            Bracket& bracket = at(track.oldest);
            const std::int64_t age = now - bracket.opened;
            if (bracket.state == State::kOpen) {
                if (age < (bracket.launching == 0 ? kForgottenNs : kLostNs)) break;
                abandon(track, track.oldest);
                continue;
            }
            if (is_passed(calls, bracket.last)) {
                const Found one = harvest(calls, bracket, now);
                found.correction += one.correction;
                found.measured += one.measured;
                release(track, track.oldest);
                continue;
            }
            if (bracket.running == 0 && age > bracket.charged && is_passed(calls, bracket.first)) bracket.running = now;
            if (bracket.running != 0 && now - bracket.running > bracket.charged &&
                (longest == nullptr || bracket.running < longest->running)) {
                longest = &bracket;
            }
            break;
        }
    }
    patience_ = kForEver;
    if (longest != nullptr && !off_) {
        patience_ = longest->unknown ? kFirstNs : kAgainNs;
        const std::int64_t ran = now - longest->running;
        found.correction += ran - longest->charged;
        longest->charged = ran;
        if (longest->launches == 1) estimates_.raise(longest->work[0], ran);
    }
    return found;
}

bool Meter::has_room(const Lane& lane, Estimates::Index work) const {
    if (in_flight_ >= kInFlight || (unknown_ != 0 && !estimates_.known(work))) return false;
    return find(lane.key) != nullptr && unused() != 0;
}

Meter::Ticket Meter::begin(const Calls& calls, CUcontext context, const Lane& lane, Estimates::Index work,
                           std::int64_t charged, bool joinable) {
    auto* track = const_cast<Track*>(find(lane.key));
    if (off_ || track == nullptr) return {};
    if (track->key != lane.key && track->oldest != 0) abandon(*track, track->oldest);
    track->key = lane.key;
    std::uint8_t number = track->open;
    bool ran_dry = false;
    if (number == 0 || at(number).launching == 0) {
        ran_dry = calls.cuStreamQuery(lane.stream) == CUDA_SUCCESS;
        if (ran_dry && number != 0) {  // when, nobody knows: the estimates stay charged
            abandon(*track, number);
            number = 0;
        }
    }
    if (number == 0 || is_full(at(number))) number = open(calls, context, lane, *track, ran_dry);
    if (number == 0) return {};
    Bracket& bracket = at(number);
    bracket.work[bracket.launches++] = work;
    ++bracket.launching;
    bracket.charged += charged;
    if (!bracket.unknown && !estimates_.known(work)) {
        bracket.unknown = true;
        ++unknown_;
    }
    return {
        .bracket = number, .generation = bracket.generation, .charged = charged, .work = work, .joinable = joinable};
}

Found Meter::end(const Calls& calls, const Lane& lane, const Ticket& ticket, bool ok) {
    Found found;
    if (!ok) found.correction = -ticket.charged;
    if (off_ || ticket.bracket == 0 || at(ticket.bracket).generation != ticket.generation) return found;
    auto* track = const_cast<Track*>(find(lane.key));
    Bracket& bracket = at(ticket.bracket);
    --bracket.launching;
    if (!ok) {
        bracket.charged -= ticket.charged;
        const auto place = std::find(bracket.work, bracket.work + bracket.launches, ticket.work);
        *place = bracket.work[--bracket.launches];
    } else if (bracket.ran_dry && bracket.lead == 0) {
        bracket.lead = std::clamp<std::int64_t>(host.now() - bracket.opened, 1, kLeadNs);
    }
    if (bracket.launching != 0) return found;
    const auto number = static_cast<std::uint8_t>(ticket.bracket);
    if (bracket.launches == 0) {
        abandon(*track, number);
    } else if (track->open != number || !ticket.joinable || bracket.ran_dry || is_full(bracket) ||
               !estimates_.is_shorter(ticket.work, kLongNs)) {
        close(calls, lane.stream, *track, number);
    }
    return found;
}

void Meter::divide(const Calls& calls, const Lane& lane) {
    auto* track = const_cast<Track*>(find(lane.key));
    if (off_ || track == nullptr || track->key != lane.key || track->open == 0) return;
    const std::uint8_t number = track->open;
    track->open = 0;
    if (at(number).launching == 0) close(calls, lane.stream, *track, number);
}

// The stream's track, or the one that is easiest to take from another.
const Meter::Track* Meter::find(std::uint64_t key) const {
    const Track* best = nullptr;
    std::int64_t least = kNotToBeHad;
    for (const Track& track : tracks_) {
        if (track.oldest != 0 && track.key == key) return &track;
        if (const std::int64_t used = used_at(track); used < least) {
            best = &track;
            least = used;
        }
    }
    return best;
}

// When something was last begun in it: never, or kNotToBeHad when it holds more than an open bracket that waits for
// another launch.
std::int64_t Meter::used_at(const Track& track) const {
    if (track.oldest == 0) return 0;
    const Bracket& bracket = brackets_[track.oldest - 1];
    return track.oldest == track.open && bracket.launching == 0 ? bracket.opened : kNotToBeHad;
}

std::uint8_t Meter::unused() const {
    for (int index = 0; index < kBrackets; ++index) {
        if (brackets_[index].state == State::kFree) return static_cast<std::uint8_t>(index + 1);
    }
    return 0;
}

std::uint8_t Meter::open(const Calls& calls, CUcontext context, const Lane& lane, Track& track, bool ran_dry) {
    const std::uint8_t number = unused();
    if (number == 0) return 0;
    Bracket& bracket = at(number);
    if (!make_events(calls, context, bracket) || !succeeded(calls.cuEventRecord(bracket.first, lane.stream))) return 0;
    bracket.opened = host.now();
    bracket.running = bracket.lead = bracket.charged = 0;
    bracket.launching = bracket.launches = bracket.next = 0;
    bracket.state = State::kOpen;
    bracket.ran_dry = ran_dry;
    bracket.unknown = false;
    (track.newest != 0 ? at(track.newest).next : track.oldest) = number;
    return track.newest = track.open = number;
}

bool Meter::make_events(const Calls& calls, CUcontext context, Bracket& bracket) {
    if (bracket.first != nullptr && bracket.last != nullptr) return true;
    if (!succeeded(calls.cuCtxPushCurrent(context))) return false;
    bool made = true;
    for (CUevent* event : {&bracket.first, &bracket.last}) {
        if (*event == nullptr) made = made && succeeded(calls.cuEventCreate(event, CU_EVENT_DEFAULT));
    }
    calls.cuCtxPopCurrent(&context);
    return made;
}

bool Meter::is_full(const Bracket& bracket) const {
    return bracket.launches == kLaunches || bracket.charged >= kBracketNs;
}

void Meter::close(const Calls& calls, CUstream stream, Track& track, std::uint8_t number) {
    Bracket& bracket = at(number);
    if (!succeeded(calls.cuEventRecord(bracket.last, stream))) return abandon(track, number);
    bracket.state = State::kClosed;
    in_flight_ += bracket.launches;
    if (track.open == number) track.open = 0;
}

// What was charged for it stays.
void Meter::abandon(Track& track, std::uint8_t number) {
    const Bracket& bracket = at(number);
    for (int launch = 0; launch < bracket.launches; ++launch) estimates_.doubt(bracket.work[launch]);
    release(track, number);
}

void Meter::release(Track& track, std::uint8_t number) {
    Bracket& bracket = at(number);
    std::uint8_t before = 0;
    for (std::uint8_t other = track.oldest; other != number; other = at(other).next) before = other;
    (before != 0 ? at(before).next : track.oldest) = bracket.next;
    if (track.newest == number) track.newest = before;
    if (track.open == number) track.open = 0;
    if (bracket.state == State::kClosed) in_flight_ -= bracket.launches;
    if (bracket.unknown) --unknown_;
    bracket.state = State::kFree;
    ++bracket.generation;
}

bool Meter::is_passed(const Calls& calls, CUevent event) {
    const CUresult result = calls.cuEventQuery(event);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) off_ = true;
    return result == CUDA_SUCCESS;
}

bool Meter::succeeded(CUresult result) {
    if (result != CUDA_SUCCESS && !is_passing(result)) off_ = true;
    return result == CUDA_SUCCESS;
}

// Times are floats of milliseconds, so only neighbours are compared: the last event of a bracket with its first, and
// with the last one of the bracket before.
Found Meter::harvest(const Calls& calls, Bracket& bracket, std::int64_t now) {
    float own = 0;
    float since = 0;
    if (!succeeded(calls.cuEventElapsedTime(&own, bracket.first, bracket.last))) return {};
    if (reference_ != nullptr && !succeeded(calls.cuEventElapsedTime(&since, reference_, bracket.last))) return {};
    // Not longer than the host saw it.
    const std::int64_t whole = std::clamp<std::int64_t>(nanoseconds(own), 0, now - bracket.opened + kMillisecond);
    const std::int64_t length = whole - std::min(bracket.lead, whole / 2);
    reference_at_ += nanoseconds(since);
    std::swap(reference_, bracket.last);
    const std::int64_t fresh = cover_.add(reference_at_ - length, reference_at_);
    learn(bracket, fresh, length);
    return {.correction = fresh - bracket.charged, .measured = fresh};
}

void Meter::learn(const Bracket& bracket, std::int64_t fresh, std::int64_t length) {
    const Estimates::Index* works = bracket.work;
    if (bracket.launches == 1) return estimates_.learn(works[0], fresh, length);
    std::int64_t estimated = 0;
    for (int launch = 0; launch < bracket.launches; ++launch) estimated += estimates_.of(works[launch]);
    for (int launch = 0; launch < bracket.launches; ++launch) {
        if (std::find(works, works + launch, works[launch]) != works + launch) continue;  // each kind once
        estimates_.learn_together(works[launch], fresh, length, estimated);
    }
}

}  // namespace runlist::cap
