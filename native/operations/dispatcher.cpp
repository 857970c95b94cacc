// The thread that gives queued operations to the driver, and asks whether client 0 is idle. It polls while something is
// queued or somebody wants to know, and sleeps else.
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "core/guest.hpp"
#include "core/say.hpp"
#include "operations/engine.hpp"
#include "operations/patience.hpp"

namespace runlist::operations {
namespace {

constexpr std::int64_t kWantedNs = 2'000'000;  // for how long somebody is taken to want to know
constexpr int kEager = 64;                     // fruitless looks before it sleeps between them
constexpr int kInOneGo = 64;                   // before another client has its turn
constexpr std::int64_t kPauseNs = 5'000;
constexpr std::int64_t kLongestPauseNs = 60'000;
constexpr std::int64_t kLeastQuietNs = 20'000;
constexpr std::int64_t kMostQuietNs = 1'000'000;

// What this thread asks does not end captures, but for questions about a stream that captures.
void relax(const Calls& calls) {
    static constinit thread_local const Calls* relaxed = nullptr;
    if (relaxed == &calls) return;
    relaxed = &calls;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (calls.cuThreadExchangeStreamCaptureMode != nullptr) calls.cuThreadExchangeStreamCaptureMode(&mode);
}

// Whether a stream captures, or must not be asked what it does since others do. None begins to meanwhile.
bool captures(const Stream& stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return stream.calls->cuStreamIsCapturing == nullptr ||
           stream.calls->cuStreamIsCapturing(stream.handle, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Whether what client 0 was seen to give its streams is done. Those that capture count as if it were.
bool is_first_done(Engine& all) {
    if (all.first_per_thread.load(std::memory_order_acquire) != 0) return false;
    for (const Engine::Followed& one : all.followed) {
        const Calls* calls = one.calls.load(std::memory_order_acquire);
        if (calls == nullptr) break;
        relax(*calls);
        if (calls->cuEventQuery(one.event.load()) == CUDA_ERROR_NOT_READY) return false;
    }
    bool done = true;
    all.streams.each([&](const void* key, Stream& stream) {
        if (!done || !stream.of_first.load(std::memory_order_acquire)) return;
        const Held held(all.streaming);
        if (all.streams.find(key) != &stream) return;
        CUcontext current = nullptr;
        stream.calls->cuCtxGetCurrent(&current);
        if (current != stream.context) stream.calls->cuCtxSetCurrent(stream.context);
        relax(*stream.calls);
        if (stream.joining.load() != 0) {
            done = false;  // ask later
            return;
        }
        if (all.any_capture() && captures(stream)) return;
        done = stream.calls->cuStreamQuery(stream.handle) != CUDA_ERROR_NOT_READY;
    });
    return done;
}

// For how long client 0 has to give nothing before the driver is asked: a question holds up a launch of its, and while
// it launches the answer is known.
std::int64_t quiet_ns(const Admission& rule) {
    return std::clamp(rule.rest_ns.load(std::memory_order_relaxed), kLeastQuietNs, kMostQuietNs);
}

void look_at_first(Engine& all, std::int64_t now) {
    First& first = all.page->first;
    if (!first.is_working()) return;
    first.idle.store(0);  // until the driver has said so, nobody takes it for idle
    if (first.worked.exchange(0) != 0) all.worked_ns = now;
    if (now - all.worked_ns < quiet_ns(all.page->admission)) return;
    const Held held(all.asking);
    if (is_first_done(all)) first.has_ended(monotonic_ns());
}

// The bell is rung before it is looked whether the thread sleeps, and it says so before it looks at the bell.
void ring(Bell& bell) {
    bell.rung.fetch_add(1);
    if (bell.sleeping.load() == 0) return;
    call(SYS_futex, &bell.rung, long{FUTEX_WAKE}, long{INT_MAX}, nullptr, nullptr, 0L);
}

void want_to_know(First& first) {
    first.wanted_ns.store(monotonic_ns() + kWantedNs);
    ring(first.bell);
}

// A word of later than anybody may have said by now is nobody's.
bool is_wanted(const Engine& all) {
    if (!all.processes || all.own != 0) return false;
    const std::int64_t until = all.page->first.wanted_ns.load();
    const std::int64_t now = monotonic_ns();
    return until > now && until - now <= kWantedNs;
}

// Whoever waits for what is done looks again, and says anew what else it waits for.
void rouse(Client& client) {
    client.awaited.store(0);
    client.drained.fetch_add(1);
    call(SYS_futex, &client.drained, long{FUTEX_WAKE}, long{INT_MAX}, nullptr, nullptr, 0L);
}

void say_awaited(Client& client, std::uint64_t number) {
    std::uint64_t first = client.awaited.load();
    while ((first == 0 || first > number) && !client.awaited.compare_exchange_weak(first, number)) {
    }
}

// Gives what may go to the driver. Returns how many that were.
int drain(Engine& all, Client& client) {
    int given = 0;
    while (given < kInOneGo) {
        void* front = client.queue.front();
        if (front == nullptr) break;
        auto& record = *static_cast<Record*>(front);
        const std::int64_t now = monotonic_ns();
        const std::uint64_t number = Queue::number_of(front);
        relax(*record.work.calls);
        CUcontext current = nullptr;
        record.work.calls->cuCtxGetCurrent(&current);
        if (current != record.context) record.work.calls->cuCtxSetCurrent(record.context);
        if (number > client.forced.load(std::memory_order_acquire) &&
            !admitted(all, client, record.work.kind, record.work.cost)) {
            if (now - record.work.called_ns < all.bound_ns) break;
            client.forced.store(client.queue.written(), std::memory_order_release);
            client.opened.fetch_add(1, std::memory_order_relaxed);
            if (!all.said.exchange(true)) {
                say(Level::kWarning,
                    "an operation waited for too long for its turn beside client 0: it goes without the rule");
            }
        }
        run_record(all, client, record, now);
        client.queue.pop();
        ++given;
        if (const std::uint64_t awaited = client.awaited.load(); awaited != 0 && awaited <= number) rouse(client);
    }
    return given;
}

// Whether the program's first thread has ended, which stays as a zombie while there are others: the kernel takes its
// list of robust locks away, which the C library gives to each thread.
bool has_first_ended() {
    const void* list = nullptr;
    std::size_t size = 0;
    return call(SYS_get_robust_list, call(SYS_getpid), &list, &size) == 0 && list == nullptr;
}

// How many threads there are but our own and a first one that has ended; -1 where nobody tells, as in a root without
// /proc.
long other_threads() {
    struct stat folder{};
    if (call(SYS_newfstatat, long{AT_FDCWD}, "/proc/self/task", &folder, 0L) != 0) return -1;
    return static_cast<long>(folder.st_nlink) - 4;
}

// Whether to leave, when there is nothing to do: a process whose first thread has ended ends with its last one, and
// that is not to be ours. Where nobody tells how many there are, they go on without the rule.
bool is_time_to_leave(Engine& all) {
    if (!has_first_ended()) return false;
    const long others = other_threads();
    if (others >= 0) return others == 0;
    if (!all.halt()) return true;  // for a round already: who was about to queue something has
    if (all.own == 0) all.page->first.rests();
    end_telling(all);
    return false;
}

void work(Engine& all) {
    static constinit bool leaves = false;
    int fruitless = 0;
    for (;;) {
        const std::uint32_t heard = all.bell->rung.load();  // before all that it may have been rung for
        if (all.stopping.load()) break;
        const std::int64_t now = monotonic_ns();
        bool queued = false;
        for (int index = 0; index < kClients; ++index) queued = queued || !all.all[index].queue.is_empty();
        bool active = queued;
        look_who_lives(all, now);
        if (all.first_is_here() && (queued || is_wanted(all))) {
            look_at_first(all, now);
            active = true;
        } else if (queued && all.first_is_busy() && all.page->first.is_working()) {
            want_to_know(all.page->first);
        }
        int given = 0;
        if (queued) {
            for (int index = 0; index < kClients; ++index) given += drain(all, all.all[index]);
        }
        if (poll_log(all)) active = true;
        tell(all, now);
        const bool flies = !active && any_flies(all);  // other processes count it until it is seen to have ended
        // Only now: what the driver wants at the end was said before, and comes after.
        if ((active || flies) && !leaves) {
            leaves = true;
            std::atexit(leave);
        }
        if (flies) land_all(all);
        fruitless = given != 0 ? 0 : fruitless + 1;
        if (!active) {
            all.bell->sleeping.store(1);
            const timespec longest = timespec_of(1'000'000'000);
            if (all.bell->rung.load() == heard) {
                call(SYS_futex, &all.bell->rung, long{FUTEX_WAIT}, static_cast<long>(heard), &longest, nullptr, 0L);
            }
            all.bell->sleeping.store(0);
            fruitless = 0;
            if (all.processes && all.bell->rung.load() == heard && is_time_to_leave(all))
                return;  // the C library ends the process
        } else if (fruitless > kEager) {
            const std::int64_t pause = kPauseNs * (fruitless - kEager);
            pause_ns(pause < kLongestPauseNs ? pause : kLongestPauseNs);
        }
    }
}

void* run(void* argument) {
    auto& all = *static_cast<Engine*>(argument);
    inside = true;  // what it calls is looked at already
    dispatches = true;
    call(SYS_prctl, long{PR_SET_NAME}, "runlist-ops", 0L, 0L, 0L);
    call(SYS_prctl, long{PR_SET_TIMERSLACK}, 1L, 0L, 0L, 0L);
    work(all);
    all.ended.store(true, std::memory_order_release);
    return nullptr;
}

}  // namespace

NotAsked::NotAsked() { engine.load(std::memory_order_acquire)->asking.lock(); }
NotAsked::~NotAsked() { engine.load(std::memory_order_acquire)->asking.unlock(); }

Joins::Joins(CUstream stream) : stream_(engine.load(std::memory_order_acquire)->streams.find(stream)) {
    const NotAsked none;
    if (stream_ != nullptr) stream_->joining.fetch_add(1);
}
Joins::~Joins() {
    if (stream_ != nullptr) stream_->joining.fetch_sub(1);
}

// With signals blocked in it: a program's handlers are for its own threads. Not those of faults, since the driver may
// start a thread there, which calls functions of the program.
bool start_dispatcher(Engine& all) {
    // By name, as the C library has threads in a library of their own before 2.34. Whatever uses CUDA brings that.
    auto* create = reinterpret_cast<decltype(&::pthread_create)>(surroundings.find("pthread_create"));
    if (create == nullptr) return false;
    const std::uint64_t every = ~(kOfTheCLibrary | kFaults);
    std::uint64_t before = 0;
    call(SYS_rt_sigprocmask, long{SIG_BLOCK}, &every, &before, 8L);
    pthread_t thread{};
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    const bool started = create(&thread, &attributes, run, &all) == 0;
    ::pthread_attr_destroy(&attributes);
    call(SYS_rt_sigprocmask, long{SIG_SETMASK}, &before, nullptr, 8L);
    return started;
}

void wake() { ring(*engine.load(std::memory_order_acquire)->bell); }

void wait_until_done(Client& client, std::uint64_t number, bool force) {
    Engine& all = *engine.load(std::memory_order_acquire);
    if (client.queue.done() >= number) return;
    if (force) {
        std::uint64_t forced = client.forced.load();
        while (forced < number && !client.forced.compare_exchange_weak(forced, number)) {
        }
    }
    wake();
    Patience patience(client.queue, 2 * all.bound_ns);
    for (;;) {  // it says that it waits before it looks, and the dispatcher the other way round
        const std::uint32_t seen = client.drained.load();
        say_awaited(client, number);
        if (client.queue.done() >= number || all.stopping.load()) break;
        if (patience.is_over()) {
            client.opened.fetch_add(1, std::memory_order_relaxed);
            if (!all.gave_up.exchange(true))
                say(Level::kWarning, "the driver takes nothing of what is queued: going on without that, out of order");
            break;
        }
        const timespec longest = timespec_of(100'000'000);
        call(SYS_futex, &client.drained, long{FUTEX_WAIT}, static_cast<long>(seen), &longest, nullptr, 0L);
    }
}

}  // namespace runlist::operations
