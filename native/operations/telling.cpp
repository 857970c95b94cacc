// What whoever looks from outside is told of the clients: about once a second the dispatcher, which wakes as often at
// least, writes it into the process' place in the region. Nobody's launch pays for that.
#include <algorithm>
#include <ctime>
#include <utility>

#include "core/guest.hpp"
#include "core/relaxed.hpp"
#include "operations/engine.hpp"

namespace runlist::operations {
namespace {

constexpr std::int64_t kTellNs = 1'000'000'000;

std::uint64_t real_ns() {
    timespec now{};
    call(SYS_clock_gettime, long{CLOCK_REALTIME}, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t since(std::uint64_t& before, std::uint64_t now) { return now - std::exchange(before, now); }

// How long the oldest that waits has waited. The dispatcher alone takes records off.
std::uint64_t oldest_ns(Client& client, std::int64_t now) {
    const auto* front = static_cast<const Record*>(client.queue.front());
    return front != nullptr ? static_cast<std::uint64_t>(std::max(std::int64_t{0}, now - front->work.called_ns)) : 0;
}

void tell(Client& client, region::Client& place, std::int64_t now) {
    const std::uint64_t launched = client.launched.load(kRelaxed);
    const std::uint64_t deferred = client.deferred.load(kRelaxed);
    Lately& lately = client.lately;
    place.launched.store(launched, kRelaxed);
    place.deferred.store(deferred, kRelaxed);
    place.opened.store(client.opened.load(kRelaxed), kRelaxed);
    place.queued.store(client.queue.written() - client.queue.done(), kRelaxed);
    place.oldest_ns.store(oldest_ns(client, now), kRelaxed);
    place.lately_launched.store(since(lately.launched, launched), kRelaxed);
    place.lately_deferred.store(since(lately.deferred, deferred), kRelaxed);
    place.lately_wait_ns.store(lately.middle_wait(), kRelaxed);
    place.lately_sm_ns.store(since(lately.sm_ns, client.sm_ns.load(kRelaxed)), kRelaxed);
}

std::uint64_t bits_of(const Engine& all) {
    return all.processes ? std::uint64_t{1} << all.own : (std::uint64_t{1} << all.clients) - 1;
}

}  // namespace

void tell(Engine& all, std::int64_t now) {
    if (now - all.told_ns < kTellNs) return;
    const std::int64_t window_ns = now - std::exchange(all.told_ns, now);
    if (!all.telling.known) all.telling = surroundings.told_in();
    if (all.telling.operations == nullptr) return;
    region::Operations& place = *all.telling.operations;
    const Admission& rule = all.page->admission;
    for (int index = 0; index < kClients; ++index) {
        if ((bits_of(all) >> index & 1) != 0) tell(all.all[index], place.clients[index], now);
    }
    place.beside.store(rule.beside.load(kRelaxed), kRelaxed);
    place.most_sms.store(rule.sms.load(kRelaxed), kRelaxed);
    place.copies.store(rule.copies.load(kRelaxed), kRelaxed);
    place.gate_ns.store(static_cast<std::uint64_t>(rule.gate_ns.load(kRelaxed)), kRelaxed);
    place.ahead_ns.store(static_cast<std::uint64_t>(rule.ahead_ns.load(kRelaxed)), kRelaxed);
    place.rest_ns.store(static_cast<std::uint64_t>(rule.rest_ns.load(kRelaxed)), kRelaxed);
    place.sms.store(all.kernels.sms(), kRelaxed);
    place.window_ns.store(static_cast<std::uint64_t>(window_ns), kRelaxed);
    place.written_ns.store(real_ns(), std::memory_order_release);
    all.telling.slot->clients.store(bits_of(all), std::memory_order_release);
}

void begin_telling(Engine& all) {
    all.told_ns = monotonic_ns();
    for (Client& client : all.all) client.lately = {};
}

void end_telling(Engine& all) {
    if (all.telling.slot != nullptr) all.telling.slot->clients.store(0);
}

}  // namespace runlist::operations
