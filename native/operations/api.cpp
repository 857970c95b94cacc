#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "core/say.hpp"
#include "include/runlist_operations.h"
#include "operations/engine.hpp"

namespace {

using namespace runlist;
using namespace runlist::operations;

// The engine while it runs; nullptr else. A program may ask before it asks the driver for anything.
Engine* running() {
    surroundings.join();
    Engine* all = engine.load(std::memory_order_acquire);
    return all != nullptr && all->runs() ? all : nullptr;
}

}  // namespace

int rl_operations_start(int clients) { return start_threads(clients); }

int rl_operations_stop(void) { return stop(); }

int rl_operations_client(int index) {
    const Engine* all = running();
    if (all == nullptr) return -ENOENT;
    if (index < -1 || index >= all->clients) return -EINVAL;
    become(index);
    return 0;
}

int rl_operations_admission(const struct rl_admission* admission) {
    Engine* all = running();
    if (all == nullptr) return -ENOENT;
    constexpr std::size_t kFirstSize = offsetof(rl_admission, ahead_ns);  // of programs built before it grew
    if (admission == nullptr || (admission->size != sizeof(*admission) && admission->size != kFirstSize))
        return -EINVAL;
    const bool whole = admission->size == sizeof(*admission);
    if (whole && (admission->ahead_ns < 0 || admission->rest_ns < 0)) return -EINVAL;
    Admission& rule = all->page->admission;
    rule.beside.store(admission->beside);
    rule.sms.store(admission->sms);
    rule.copies.store(admission->copies);
    rule.gate_ns.store(admission->gate_ns);
    rule.ahead_ns.store(whole ? admission->ahead_ns : 0);
    rule.rest_ns.store(whole ? admission->rest_ns : 0);
    wake();
    return 0;
}

int rl_operations_profile(const char* kernel, uint32_t operation_class, uint32_t sms, int64_t duration_ns) {
    Engine* all = running();
    if (all == nullptr) return -ENOENT;
    constexpr std::uint32_t kMostSms = 1u << 16;
    constexpr std::int64_t kLongestNs = std::int64_t{1} << 40;
    if (kernel == nullptr || *kernel == '\0' || operation_class >= kClasses || sms > kMostSms || duration_ns < 0 ||
        duration_ns > kLongestNs) {
        return -EINVAL;
    }
    return all->kernels.profile(kernel, {.of_class = operation_class, .sms = sms, .duration_ns = duration_ns});
}

int rl_operations_counters(int client, struct rl_operations_counters* counters) {
    Engine* all = engine.load(std::memory_order_acquire);
    if (all == nullptr || all->page == nullptr) return -ENOENT;
    if (client < 0 || client >= all->clients || counters == nullptr) return -EINVAL;
    const Client& one = all->all[static_cast<std::size_t>(client)];
    *counters = {.launched = one.launched.load(),
                 .deferred = one.deferred.load(),
                 .flushed = one.flushed.load(),
                 .opened = one.opened.load(),
                 .waited_ns = one.waited_ns.load(),
                 .requests = one.requests.load(),
                 .latency_ns = one.latency_ns.load()};
    return 0;
}

int rl_operations_latencies(uint64_t* latencies, int most) {
    Engine* all = engine.load(std::memory_order_acquire);
    if (all == nullptr || all->page == nullptr) return -ENOENT;
    if (latencies == nullptr || most < 0) return -EINVAL;
    return all->latencies.take(latencies, most);
}

int rl_operations_log(int on) {
    Engine* all = running();
    if (all == nullptr) return -ENOENT;
    all->logging.store(on != 0);
    return 0;
}

int rl_operations_take(struct rl_operation* operations, int most) {
    Engine* all = engine.load(std::memory_order_acquire);
    if (all == nullptr || all->page == nullptr) return -ENOENT;
    if (operations == nullptr || most < 0) return -EINVAL;
    const Held held(all->log.lock);
    Log& log = all->log;
    const std::uint64_t until = all->logging.load() ? log.known() : log.written;
    int taken = 0;
    for (; taken < most && log.taken < until; ++taken) {
        operations[taken] = log.ring[log.taken++ % Log::kRoom];
        operations[taken].lost = log.lost;
    }
    return taken;
}

int orion_start_scheduler(int clients) { return rl_operations_start(clients); }

// It answers nothing, so that who comes too early would never know.
void orion_set_client_idx(int index) {
    static constinit std::atomic<bool> said{false};
    if (rl_operations_client(index) == 0 || said.exchange(true)) return;
    say(Level::kWarning, "orion_set_client_idx: no such client now: start the scheduler first, with more clients");
}

void orion_stop_scheduler(void) { rl_operations_stop(); }
