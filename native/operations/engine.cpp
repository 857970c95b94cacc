#include "operations/engine.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/guest.hpp"
#include "core/pages.hpp"
#include "core/relaxed.hpp"
#include "core/say.hpp"

namespace runlist::operations {

constinit std::atomic<Engine*> engine{nullptr};
constinit thread_local std::int8_t own_client = 0;
constinit thread_local bool inside = false;
constinit thread_local std::uint8_t gave_as = 0;
constinit thread_local bool gave_elsewhere = false;
constinit thread_local bool dispatches = false;
constinit std::atomic<unsigned> graph_events{0};

namespace {

constexpr std::int64_t kLivesNs = 5'000'000;  // how often it is asked which processes live
constexpr std::int64_t kBoundNs = 10'000'000'000;

constinit std::atomic<std::int64_t> bound_ns{kBoundNs};

}  // namespace

bool Engine::halt() {
    unsettle(*this);
    for (std::uint32_t now = turn.load(); runs(now);)
        if (turn.compare_exchange_weak(now, now + 1)) return true;
    return false;
}

// Before the driver ends: it is not to be asked then.
void leave() {
    Engine* all = engine.load(std::memory_order_acquire);
    if (all == nullptr) return;
    all->left.store(true);
    if (!all->halt()) return;
    all->stopping.store(true);
    wake();
    for (int attempt = 0; attempt < 200 && !all->ended.load(std::memory_order_acquire); ++attempt) pause_ns(1'000'000);
}

namespace {

Engine* make_engine() {
    Engine* there = engine.load(std::memory_order_acquire);
    if (there != nullptr) return there;
    void* pages = map_pages(sizeof(Engine));
    if (pages == nullptr) return nullptr;
    if (!wipe_on_fork(pages, sizeof(Engine))) {  // a child would believe that it has a thread
        unmap_pages(pages, sizeof(Engine));
        return nullptr;
    }
    auto* made = static_cast<Engine*>(pages);
    if (engine.compare_exchange_strong(there, made)) {
        return made;
    }
    unmap_pages(pages, sizeof(Engine));
    return there;
}

// Whoever starts or stops the scheduler, alone.
class Change {
  public:
    explicit Change(Engine& all) : all_(all), alone_(!all.changing.exchange(true)) {}
    ~Change() {
        if (alone_) all_.changing.store(false);
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

    explicit operator bool() const { return alone_; }

  private:
    Engine& all_;
    bool alone_;
};

// Threads may have given any stream something.
void gave_anything(Engine& all) {
    unsettle(all);
    for (Client& client : all.all) {
        client.legacy.give();
        client.context.give();
    }
}

// Of a thread that goes on as a client meanwhile nothing is changed in its hands.
void set_up(Engine& all, int clients) {
    all.clients.store(clients);
    all.bound_ns.store(bound_ns.load(kRelaxed));
    if (all.any_capture == nullptr) all.any_capture = surroundings.any_capture;
    all.live.store((std::uint64_t{1} << clients) - 1);  // of processes it is asked
    all.lived_ns.store(0);
    look_who_lives(all, monotonic_ns());
    if (all.bell == nullptr) all.bell = all.first_is_here() ? &all.page->first.bell : &all.own_bell;
    all.stopping.store(false);
    all.ended.store(false);
    all.closed.store(false);
    for (int index = 0; index < kClients; ++index) {
        Client& client = all.all[index];
        if (client.index != index) client.index = index;
        for (auto* counter : {&client.launched, &client.deferred, &client.flushed, &client.opened, &client.waited_ns,
                              &client.requests, &client.latency_ns, &client.sm_ns}) {
            counter->store(0, kRelaxed);
        }
        {
            const Held held(client.metering);
            client.guess_ns = client.flew_ns = 0;
        }
        client.began_ns.store(0, kRelaxed);
        client.per_thread.store(0, kRelaxed);
        client.mixes.store(false, kRelaxed);
    }
    begin_telling(all);
    for (std::uint64_t old[64]; all.latencies.take(old, 64) == 64;) {
    }
    all.kernels.forget();  // who was stopped does not hear which code is unloaded
    gave_anything(all);    // before they were clients
}

}  // namespace

void look_who_lives(Engine& all, std::int64_t now) {
    if (!all.processes || now - all.lived_ns.load(kRelaxed) < kLivesNs) return;
    all.lived_ns.store(now, kRelaxed);
    all.live.store(living() | std::uint64_t{1} << all.own, kRelaxed);
}

// One that came after it was last looked is seen when its part of the page says that it is busy.
bool Engine::busy_first_lives() {
    if ((live.load(kRelaxed) & 1) == 0) look_who_lives(*this, monotonic_ns());
    return (live.load(kRelaxed) & 1) != 0;
}

void set_bound(std::int64_t nanoseconds) { bound_ns.store(nanoseconds, kRelaxed); }

int start_threads(int clients) {
    if (clients < 1 || clients > kClients) return -EINVAL;
    if (!surroundings.hooking()) return -ENOSYS;
    Engine* all = make_engine();
    if (all == nullptr) return -ENOMEM;
    const Change change(*all);
    if (!change || all->runs()) return -EALREADY;
    if (all->turn.load() == 0) own_client = 0;  // else of who forked
    if (all->page == nullptr) all->page = make_page();
    if (all->page == nullptr) return -ENOMEM;
    set_up(*all, clients);
    if (!start_dispatcher(*all)) return -EAGAIN;
    all->turn.fetch_add(1);
    return 0;
}

void start_process(const char* path, int client) {
    Engine* all = make_engine();
    if (all == nullptr) return;
    const char* why = "";
    all->processes = true;
    all->own = client;
    all->page = map_page(path, client, why);
    if (all->page == nullptr) {
        if (*why != '\0') say(Level::kWarning, "RUNLIST_OPERATIONS=", Quoted{path}, " ", why, "; going on without it");
        all->processes = false;
        return;
    }
    set_up(*all, kClients);
    if (start_dispatcher(*all)) all->turn.fetch_add(1);
}

// What is queued goes without the rule. Other threads may go on meanwhile: what they are about to queue is queued
// before it is waited for, or goes at once behind it.
int stop() {
    Engine* all = engine.load(std::memory_order_acquire);
    if (all == nullptr || !all->runs()) return -ENOENT;
    if (all->processes) return 0;  // as long as the process
    const Change change(*all);
    if (!change || !all->runs()) return -ENOENT;
    for (Client& client : all->all) wait_until_done(client, client.queue.written(), true);
    all->closed.store(true);
    for (Client& client : all->all) {
        const Held nobody_queues(client.writing);
    }
    for (Client& client : all->all) wait_until_done(client, client.queue.written(), true);
    all->halt();
    settle(*all);
    all->stopping.store(true);
    wake();
    while (!all->ended.load(std::memory_order_acquire)) pause_ns(100'000);
    end_telling(*all);
    return 0;
}

Client* client_of(CUstream stream) {
    Engine& all = here();
    if (all.processes) return &all.all[all.own];
    if (own_client > 0 && own_client <= all.clients) return &all.all[own_client - 1];
    if (is_default(stream)) return nullptr;
    const Stream* there = all.streams.find(stream);
    return there != nullptr && there->maker >= 0 && there->maker < all.clients ? &all.all[there->maker] : nullptr;
}

void Call::came_between() {
    gave_anything(here());
    settle(here());
}

void gave_legacy() {
    for (Client& client : here().all) client.legacy.give();
}

void become(int index) {
    static constinit thread_local std::int8_t before = 0;  // as which it was one at last
    own_client = static_cast<std::int8_t>(index + 1);
    if (index < 0) return;
    if (before != 0 && before != own_client) gave_elsewhere = true;
    before = own_client;
    if (gave_elsewhere) here().all[index].context.give();
}

void change_hands(int who) {
    Engine& all = here();
    const int before = std::exchange(gave_as, static_cast<std::uint8_t>(who));
    if (before == 0) return;
    if (before == kNone) {
        wait_for_all();
    } else {
        Client& client = all.all[before - 1];
        wait_until_done(client, client.queue.written(), true);
    }
    unsettle(all);
    settle(all);
}

void wait_for_all() {
    Engine& all = here();
    for (Client& client : all.all) {
        if (client.queue.is_empty()) continue;
        client.flushed.fetch_add(1, kRelaxed);
        wait_until_done(client, client.queue.written(), true);  // client 0 may wait for whoever this is
    }
}

void before(const Client* client, CUstream stream, bool ordered_with_all) {
    Engine& all = here();
    if (client == nullptr && ordered_with_all) return wait_for_all();
    if (is_default(stream)) return;
    const Stream* there = all.streams.find(stream);
    if (there == nullptr || there->pending.load(std::memory_order_acquire) == 0) return;
    Client& other = all.all[there->queued_by.load(kRelaxed) & 15];
    if (&other != client) wait_until_done(other, other.queue.written(), client != nullptr);
}

void forget_kernels() { here().kernels.forget(); }

bool parameters_of(const Calls& calls, CUfunction function, int& count, std::uint16_t (&sizes)[Kernel::kParameters]) {
    count = -1;
    here().kernels.visit(calls, function, [&](const Kernel& kernel) {
        count = kernel.parameters;
        std::copy_n(kernel.sizes.begin(), std::max(count, 0), sizes);
    });
    return count >= 0;
}

void flush(Client& client) {
    if (client.queue.is_empty()) return;
    client.flushed.fetch_add(1, kRelaxed);
    wait_until_done(client, client.queue.written(), false);
}

CUresult take_error(Client& client) {
    if (client.error.load(kRelaxed) == 0) [[likely]]
        return CUDA_SUCCESS;
    return static_cast<CUresult>(client.error.exchange(0));
}

CUresult error_of_before() {
    Engine& all = here();
    if (all.processes || own_client <= 0) return CUDA_SUCCESS;
    return take_error(all.all[own_client - 1]);
}

void flush_others(const Client* client) {
    for (Client& other : here().all) {
        if (&other == client || other.queue.is_empty()) continue;
        other.flushed.fetch_add(1, kRelaxed);
        wait_until_done(other, other.queue.written(), true);
    }
}

bool is_queued(const Client& client, CUstream stream) {
    if (client.queue.is_empty()) return false;
    const Stream* there = here().streams.find(stream);
    return there == nullptr || there->pending.load(std::memory_order_acquire) != 0;
}

bool is_queued(CUevent event) {
    Engine& all = here();
    const auto* there = all.events.find(event);
    if (there == nullptr) return false;
    const std::uint64_t word = there->load(std::memory_order_acquire);
    return all.all[word >> 56 & 15].queue.done() < (word & ((std::uint64_t{1} << 56) - 1));
}

bool prepare() { return make_engine() != nullptr; }

void share_event(CUevent event) {
    Engine& all = here();
    const Held held(all.eventing);
    if (event != nullptr && all.shared.add(event, [](char&) {}, [](char) { return false; }) == nullptr)
        all.any_shared.store(true);
}

void forget_shared(CUevent event) {
    Engine& all = here();
    if (all.shared.find(event) == nullptr) return;
    const Held held(all.eventing);
    all.shared.remove(event);
}

bool is_shared(CUevent event) { return here().any_shared.load(kRelaxed) || here().shared.find(event) != nullptr; }

void await_event(const Client* client, CUevent event) {
    Engine& all = here();
    const auto* there = all.events.find(event);
    if (there == nullptr || !is_queued(event)) return;
    const std::uint64_t word = there->load(std::memory_order_acquire);
    Client& owner = all.all[word >> 56 & 15];
    owner.flushed.fetch_add(1, kRelaxed);
    // Another client's wait goes by the rule no more than its own work would.
    wait_until_done(owner, word & ((std::uint64_t{1} << 56) - 1), client != nullptr && client != &owner);
}

void await_event_of_others(const Client* client, CUevent event) {
    const Engine& all = here();
    const auto* there = here().events.find(event);
    if (there == nullptr) return;
    const Client& owner = all.all[there->load(std::memory_order_acquire) >> 56 & 15];
    if (&owner != client) await_record(event);
}

void await_record(CUevent event) { await_event(&here().all[0], event); }

void await_events_of_others(const Client* client) {
    here().events.each([&](const void* event, auto&) {
        await_event_of_others(client, static_cast<CUevent>(const_cast<void*>(event)));
    });
}

bool is_pinned(const Calls& calls, const void* memory) {
    unsigned type = 0;
    return calls.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                       reinterpret_cast<CUdeviceptr>(memory)) == CUDA_SUCCESS;
}

void stretch_ended(Client& client, bool all) {
    if (client.index == 0 && all) here().first_per_thread.store(0, std::memory_order_release);
    const std::int64_t began = client.began_ns.exchange(0, kRelaxed);
    if (began == 0) return;
    const auto took_ns = static_cast<std::uint64_t>(monotonic_ns() - began);
    client.latency_ns.store(took_ns, kRelaxed);
    if (client.index == 0) here().latencies.put(took_ns);
    client.requests.fetch_add(1, kRelaxed);
}

}  // namespace runlist::operations
