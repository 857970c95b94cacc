// What the clients beside client 0 have in flight: an event after each of their operations while client 0 is busy, one
// after all that a stream was given meanwhile when it becomes so, and one after several where the rule bounds how far
// ahead they may be.
#include <algorithm>

#include "core/guest.hpp"
#include "core/relaxed.hpp"
#include "operations/engine.hpp"

namespace runlist::operations {
namespace {

constexpr std::int64_t kGuessed = 16;  // what part of being ahead the first kernels are of which nothing is known
constexpr std::int64_t kLeastGuessNs = 1'000;
constexpr std::int64_t kStandsNs = 50'000'000;
constexpr std::int64_t kCounted = 4;  // in what parts of it an event is recorded

void add(Engine& all, const Client& client, const Cost& cost, int sign) {
    Other& other = all.page->others[client.index];
    other.sms.store(other.sms.load(kRelaxed) + (sign > 0 ? cost.sms : 0u - cost.sms), kRelaxed);
    other.duration_ns.store(other.duration_ns.load(kRelaxed) + sign * cost.duration_ns, kRelaxed);
}

void count_nothing(Stream& stream) {
    stream.sms = 0;
    stream.duration_ns = 0;
    stream.guessed = 0;
    stream.vague = false;
}

// What a stream was given since an event was recorded is in flight. Under the lock of meters, with the context current.
[[gnu::noinline]] bool begin_flight(Engine& all, Client& client, const Calls& calls, Stream& stream) {
    Flight* chosen = nullptr;
    for (Flight& flight : client.flights) {
        if (flight.used) continue;
        if (flight.context == stream.context) {
            chosen = &flight;
            break;
        }
        if (chosen == nullptr && flight.context == nullptr) chosen = &flight;
    }
    if (chosen == nullptr) return false;
    if (chosen->context == nullptr) {
        if (make_event(stream, CU_EVENT_DISABLE_TIMING, chosen->event) != CUDA_SUCCESS) return false;
        chosen->context = stream.context;
        chosen->calls = &calls;
    }
    if (calls.cuEventRecord(chosen->event, stream.handle) != CUDA_SUCCESS) return false;
    if (client.flew_ns == 0) client.flew_ns = client.moved_ns = monotonic_ns();  // what stands stands from now on
    chosen->used = true;
    chosen->cost = {.sms = stream.sms, .duration_ns = stream.duration_ns};
    chosen->guessed = stream.guessed;
    chosen->vague = stream.vague;
    add(all, client, chosen->cost, 1);
    count_nothing(stream);
    return true;
}

// What landed of which something was guessed.
struct Landed {
    bool vague = false;
    std::uint32_t guessed = 0;
    std::int64_t guessed_ns = 0;
    std::int64_t known_ns = 0;  // beside it
};

// While something flies all the time, what lands meanwhile took that time, unless a graph is among it. Where all has
// landed it may have been less: then that time is only a bound.
void learn(Client& client, std::int64_t flew_ns, const Landed& landed, bool flies) {
    const std::int64_t each_ns = (flew_ns - landed.known_ns) / landed.guessed;
    if (!flies && each_ns >= landed.guessed_ns / landed.guessed) return;
    const std::int64_t before_ns = client.guess_ns != 0 ? client.guess_ns : each_ns;
    client.guess_ns = std::max(kLeastGuessNs, (3 * before_ns + each_ns) / 4);
}

void land(Engine& all, Client& client) {
    bool flies = false;
    bool any = false;
    Landed landed;
    for (Flight& flight : client.flights) {
        if (!flight.used) continue;
        if (flight.calls->cuEventQuery(flight.event) == CUDA_ERROR_NOT_READY) {
            flies = true;
            continue;
        }
        flight.used = false;
        any = true;
        add(all, client, flight.cost, -1);
        landed.vague = landed.vague || flight.vague;
        landed.guessed += flight.guessed;
        (flight.guessed != 0 ? landed.guessed_ns : landed.known_ns) += flight.cost.duration_ns;
    }
    const std::int64_t now = monotonic_ns();
    if (any || !flies) client.moved_ns = now;
    if (client.flew_ns != 0 && landed.guessed != 0 && !landed.vague) learn(client, now - client.flew_ns, landed, flies);
    client.flew_ns = flies ? now : 0;
}

// What streams were given while nobody counted.
void settle(Engine& all, Client& client) {
    const Held held(all.streaming);
    std::int64_t loose_ns = 0;
    all.streams.each([&](const void*, Stream& stream) {
        if (stream.user != client.index || (stream.sms == 0 && stream.duration_ns == 0)) return;
        CUcontext current = nullptr;
        const bool is_here = stream.calls->cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
                             (current == stream.context || current == stream.part);
        if (is_here && stream.calls->cuStreamQuery(stream.handle) != CUDA_ERROR_NOT_READY) {
            count_nothing(stream);
        } else if (!is_here || !begin_flight(all, client, *stream.calls, stream)) {
            loose_ns += stream.duration_ns;
        }
    });
    client.loose_ns.store(loose_ns, kRelaxed);
}

// Whoever is in a process of its own is counted by that process. While any stream captures only events are asked, and
// those by the dispatcher alone.
void look(Engine& all, const Client& client) {
    const bool captures = all.any_capture();
    if (captures && !dispatches) return;
    for (int index = 1; index < all.clients; ++index) {
        Client& other = all.all[index];
        if (all.processes && index != client.index) continue;
        const Held metering(other.metering);
        land(all, other);
        if (!captures) settle(all, other);
    }
}

bool takes_sms(Kind kind) { return kind == Kind::kKernel || kind == Kind::kGraph; }

// How far ahead of an idle client 0 the others may be; 0: as far as they like, or there is nobody to be ahead of.
std::int64_t ahead_of(const Engine& all) {
    if ((all.live.load(kRelaxed) & 1) == 0) return 0;
    return std::clamp(all.page->admission.ahead_ns.load(kRelaxed), std::int64_t{0}, kLongestFlightNs);
}

// What is not known of an operation is guessed where it matters: by what others of the client took, or by nothing.
std::int64_t guess_ns(const Client& client, Kind kind, std::int64_t ahead_ns) {
    if (kind == Kind::kGraph || ahead_ns == 0) return ahead_ns;
    return std::min(ahead_ns, client.guess_ns != 0 ? client.guess_ns : (ahead_ns + kGuessed - 1) / kGuessed);
}

// Beside an idle client 0. Where nothing ends for long, what is in flight may wait for what is to come: one more goes.
// Each may have two in flight, however long they are: with one the GPU would stand between them. It is looked at what
// is in flight only where that matters.
[[gnu::noinline]] bool is_within(Engine& all, Client& client, std::int64_t ahead_ns) {
    const std::uint64_t live = all.live.load(kRelaxed);
    const Held held(all.asking);
    if (all.any_capture()) return true;
    look(all, client);
    if (flying(*all.page, live).duration_ns <= ahead_ns) return true;
    const Held metering(client.metering);
    if (std::count_if(client.flights.begin(), client.flights.end(), [](const Flight& one) { return one.used; }) <= 1)
        return true;
    const std::int64_t now = monotonic_ns();
    if (now - client.moved_ns < kStandsNs) return false;
    client.moved_ns = now;
    return true;
}

}  // namespace

void forget_flights(Engine& all, CUcontext context) {
    for (Client& client : all.all) {
        const Held held(client.metering);
        for (Flight& flight : client.flights) {
            if (flight.context != context) continue;
            if (flight.used) add(all, client, flight.cost, -1);
            flight = {};
        }
    }
}

// An event costs as much as a small launch: while client 0 is idle there is one for several of these.
void meter(Engine& all, Client& client, const Work& work) {
    Stream* stream = work.stream;
    const std::int64_t ahead_ns = ahead_of(all);
    const bool guesses = work.cost.duration_ns == 0 && ahead_ns != 0 && takes_sms(work.kind);
    if (stream == nullptr || (work.cost.sms == 0 && work.cost.duration_ns == 0 && !guesses)) return;
    // What a stream was given is its user's, also where others use it, as they may the driver's own default stream.
    const HeldBoth held(client.metering, all.all[stream->user & 15].metering);
    const std::int64_t duration_ns = guesses ? guess_ns(client, work.kind, ahead_ns) : work.cost.duration_ns;
    stream->guessed += guesses && work.kind == Kind::kKernel ? 1 : 0;
    stream->vague = stream->vague || (guesses && work.kind == Kind::kGraph);
    stream->sms = std::max(stream->sms, work.cost.sms);
    stream->duration_ns += duration_ns;
    const std::int64_t loose_ns = client.loose_ns.load(kRelaxed) + duration_ns;
    client.loose_ns.store(loose_ns, kRelaxed);
    if (!all.first_is_busy() && (ahead_ns == 0 || stream->duration_ns < ahead_ns / kCounted)) return;
    const std::int64_t counted_ns = stream->duration_ns;
    if (begin_flight(all, client, *work.calls, *stream))
        client.loose_ns.store(std::max(std::int64_t{0}, loose_ns - counted_ns), kRelaxed);
}

bool any_flies(Engine& all) {
    return std::any_of(all.all.begin(), all.all.end(), [](Client& client) {
        const Held metering(client.metering);
        return std::any_of(client.flights.begin(), client.flights.end(), [](const Flight& one) { return one.used; });
    });
}

void land_all(Engine& all) {
    const Held held(all.asking);
    if (all.any_capture()) return;
    for (Client& client : all.all) {
        const Held metering(client.metering);
        land(all, client);
    }
}

bool admitted(Engine& all, Client& client, Kind kind, const Cost& cost) {
    if (!all.first_is_busy()) {
        const std::int64_t ahead_ns = takes_sms(kind) ? ahead_of(all) : 0;
        if (ahead_ns == 0) return true;
        const std::int64_t all_ns =
            flying(*all.page, all.live.load(kRelaxed)).duration_ns + client.loose_ns.load(kRelaxed);
        return all_ns <= ahead_ns || is_within(all, client, ahead_ns);
    }
    if (!takes_sms(kind)) return admits(*all.page, kind, cost, ~std::uint64_t{0});
    const Admission& rule = all.page->admission;
    if (rule.sms.load(kRelaxed) != kAnySms || rule.gate_ns.load(kRelaxed) >= 0) {
        const Held held(all.asking);
        look(all, client);
    }
    return admits(*all.page, kind, cost, all.live.load(kRelaxed));
}

}  // namespace runlist::operations
