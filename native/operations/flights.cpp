// What the clients beside client 0 have in flight: an event after each of their operations while client 0 is busy, and
// one after all that a stream was given meanwhile when it becomes so.
#include <algorithm>

#include "core/guest.hpp"
#include "operations/engine.hpp"

namespace runlist::operations {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void add(Engine& all, const Client& client, const Cost& cost, int sign) {
    Other& other = all.page->others[client.index];
    other.sms.store(other.sms.load(kRelaxed) + (sign > 0 ? cost.sms : 0u - cost.sms), kRelaxed);
    other.duration_ns.store(other.duration_ns.load(kRelaxed) + sign * cost.duration_ns, kRelaxed);
}

// Under the lock of meters, with the context current.
bool begin_flight(Engine& all, Client& client, const Calls& calls, const Stream& stream, const Cost& cost) {
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
        if (calls.cuEventCreate(&chosen->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
        chosen->context = stream.context;
        chosen->calls = &calls;
    }
    if (calls.cuEventRecord(chosen->event, stream.handle) != CUDA_SUCCESS) return false;
    chosen->used = true;
    chosen->cost = cost;
    add(all, client, cost, 1);
    return true;
}

void land(Engine& all, Client& client) {
    for (Flight& flight : client.flights) {
        if (!flight.used || flight.calls->cuEventQuery(flight.event) == CUDA_ERROR_NOT_READY) continue;
        flight.used = false;
        add(all, client, flight.cost, -1);
    }
}

// What streams were given while nobody counted.
void settle(Engine& all, Client& client) {
    const Held held(all.streaming);
    all.streams.each([&](const void*, Stream& stream) {
        if (stream.user != client.index || (stream.sms == 0 && stream.duration_ns == 0)) return;
        CUcontext current = nullptr;
        if (stream.calls->cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != stream.context) return;
        if (stream.calls->cuStreamQuery(stream.handle) == CUDA_ERROR_NOT_READY &&
            !begin_flight(all, client, *stream.calls, stream, {.sms = stream.sms, .duration_ns = stream.duration_ns})) {
            return;
        }
        stream.sms = 0;
        stream.duration_ns = 0;
    });
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

void meter(Engine& all, Client& client, Stream* stream, const Calls& calls, const Cost& cost) {
    if (stream == nullptr || (cost.sms == 0 && cost.duration_ns == 0)) return;
    const Held held(client.metering);
    if (all.first_is_busy() && begin_flight(all, client, calls, *stream, cost)) return;
    stream->sms = std::max(stream->sms, cost.sms);
    stream->duration_ns += cost.duration_ns;
}

bool admitted(Engine& all, Client& client, Kind kind, const Cost& cost) {
    if (!all.first_is_busy()) return true;
    if (kind == Kind::kKernel || kind == Kind::kGraph) {
        const std::uint64_t live = all.live.load(kRelaxed);
        const Held held(all.asking);
        if (all.any_capture()) return admits(*all.page, kind, cost, live);  // what is in flight is as it was
        // Whoever is in a process of its own is counted by that process.
        for (int index = 1; index < all.clients; ++index) {
            Client& other = all.all[index];
            if (all.processes && index != client.index) continue;
            const Held metering(other.metering);
            land(all, other);
            settle(all, other);
        }
        return admits(*all.page, kind, cost, live);
    }
    return admits(*all.page, kind, cost, ~std::uint64_t{0});
}

}  // namespace runlist::operations
