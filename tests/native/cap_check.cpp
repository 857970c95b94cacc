// Programs under a cap, in simulated time. Prints for each: its name, the cap, the share of GPU time that it got, the
// share that it has without a cap, and its rate with the cap over the one without, all in percent. Then cases that are
// right or wrong, and how many were wrong.
#include <cstdio>
#include <thread>
#include <vector>

#include "cap/cover.hpp"
#include "cap/host.hpp"
#include "capped_gpu.hpp"
#include "core/space.hpp"

namespace {

using namespace capped;

std::uint64_t random_state = 1;
int random_below(int limit) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((random_state >> 33) % static_cast<unsigned>(limit));
}

struct Program {
    const char* name;
    void (*round)();  // one round of what it does for ever
};

const Program programs[] = {
    {"kernels of 50 ms", [] { launch(stream(0), 50 * kMillisecond, 0); }},
    {"kernels of 5 ms, each waited for",
     [] {
         launch(stream(0), 5 * kMillisecond, 0);
         gpu.synchronize(stream(0));
     }},
    {"kernels of 200 us", [] { launch(stream(0), 200 * kMicrosecond, 0); }},
    {"kernels of 10 us", [] { launch(stream(0), 10 * kMicrosecond, 0); }},
    {"kernels of 10 us on the default stream", [] { launch(nullptr, 10 * kMicrosecond, 0); }},
    {"kernels of 10 us, each waited for",
     [] {
         launch(stream(0), 10 * kMicrosecond, 0);
         gpu.synchronize(stream(0));
     }},
    {"thousands of kernels of 10 us, then a wait",
     [] {
         for (int index = 0; index < 3000; ++index) launch(stream(0), 10 * kMicrosecond, 0);
         gpu.synchronize(stream(0));
     }},
    {"graphs of 20 ms", [] { launch(stream(0), 20 * kMillisecond, 0, 8 * kMicrosecond); }},
    {"graphs of 1 ms, each waited for",
     [] {
         launch(stream(0), kMillisecond, 0, 5 * kMicrosecond);
         gpu.synchronize(stream(0));
     }},
    {"kernels of many kinds",
     [] {
         for (int index = 0; index < 300; ++index) launch(stream(0), (3 + index * 37 % 211) * kMicrosecond, index);
         gpu.synchronize(stream(0));
     }},
    {"one function that takes 5 us to 3 ms",
     [] {
         for (int index = 0; index < 50; ++index) {
             launch(stream(0), random_below(8) == 0 ? 3 * kMillisecond : 5 * kMicrosecond, 0);
         }
         gpu.synchronize(stream(0));
     }},
    {"two streams side by side",
     [] {
         launch(stream(0), 300 * kMicrosecond, 0);
         launch(stream(1), 300 * kMicrosecond, 1);
     }},
    {"two streams on one engine",
     [] {
         gpu.one_at_a_time = true;
         for (int index = 0; index < 20; ++index) launch(stream(index % 2), 30 * kMicrosecond, index % 2);
     }},
    {"forty streams",
     [] {
         gpu.one_at_a_time = true;
         for (int index = 0; index < 40; ++index) launch(stream(index), 100 * kMicrosecond, index);
         for (int index = 0; index < 40; ++index) gpu.synchronize(stream(index));
     }},
    {"forty streams of short kernels",
     [] {
         gpu.one_at_a_time = true;
         for (int index = 0; index < 200; ++index) launch(stream(index % 40), 10 * kMicrosecond, index % 3);
         for (int index = 0; index < 40; ++index) gpu.synchronize(stream(index));
     }},
    {"host works in between",
     [] {
         for (int index = 0; index < 20; ++index) launch(stream(0), 100 * kMicrosecond, 0);
         gpu.synchronize(stream(0));
         gpu.now += kMillisecond;
     }},
    {"host is slower than the GPU",
     [] {
         launch(stream(0), 20 * kMicrosecond, 0);
         gpu.now += 15 * kMicrosecond;
     }},
};

struct Result {
    double share;  // of GPU time
    double work;   // GPU time of what was completed; the same work has other unions with and without a cap
};

Result measure(const Program& program, std::uint64_t percent) {
    constexpr Nanoseconds kFor = 10 * kSecond;
    begin(percent);
    const Nanoseconds from = gpu.now;
    while (gpu.now < from + kFor) program.round();
    Nanoseconds done = 0;
    for (const Span& span : gpu.work) done += span.end <= from + kFor ? span.end - span.begin : 0;
    return {100.0 * static_cast<double>(gpu.busy(from, from + kFor)) / static_cast<double>(kFor),
            static_cast<double>(done)};
}

void report(const Program& program) {
    const Result alone = measure(program, 0);
    for (const std::uint64_t percent : {10, 30, 50}) {
        const Result capped = measure(program, percent);
        std::printf("share\t%s\t%d\t%.2f\t%.2f\t%.2f\n", program.name, static_cast<int>(percent), capped.share,
                    alone.share, 100 * capped.work / alone.work);
    }
}

int wrong = 0;
void expect(bool right, const char* what) {
    std::printf("case\t%s\t%s\n", what, right ? "right" : "wrong");
    wrong += !right;
}

double share_of(Nanoseconds span, void (*round)()) {
    const Nanoseconds from = gpu.now;
    while (gpu.now < from + span) round();
    return 100.0 * static_cast<double>(gpu.busy(from, from + span)) / static_cast<double>(span);
}

void check_live_changes() {
    const auto round = [] { launch(stream(0), kMillisecond, 0); };
    begin(10);
    share_of(2 * kSecond, round);
    set_cap(50);
    const double raised = share_of(kSecond, round);
    expect(raised > 48 && raised < 52, "a raised cap holds at once");
    set_cap(0);
    expect(share_of(kSecond, round) > 95, "a cap that is lifted is gone at once");
    set_cap(20);
    gpu.synchronize(stream(0));
    const double lowered = share_of(2 * kSecond, round);
    expect(lowered > 17 && lowered < 23, "a cap that is set holds at once");

    begin(1);
    launch(stream(0), 500 * kMillisecond, 1);  // costs 50 s
    gpu.synchronize(stream(0));
    launch(stream(0), kMicrosecond, 2);
    begin(1);
    launch(stream(0), 500 * kMillisecond, 1);
    gpu.synchronize(stream(0));
    const Nanoseconds from = gpu.now;
    static Nanoseconds raise_at;
    raise_at = from + 3 * kSecond;
    cap::host.sleep = [](Nanoseconds length) {
        gpu.now += length + kLateWake;
        if (gpu.now >= raise_at) set_cap(50);
    };
    launch(stream(0), kMicrosecond, 2);
    expect(gpu.now - from > 3 * kSecond && gpu.now - from < 4500 * kMillisecond,
           "raising the cap shortens a wait that has begun");
    cap::host.sleep = sleep;
}

void check_own_cap() {
    const auto round = [] { launch(stream(0), kMillisecond, 0); };
    begin(100);  // on other GPUs there is one
    expect(cap::on() && share_of(kSecond, round) > 95 && next_turn == 0, "a GPU without a cap is left alone");
    set_cap(30, own_cap);
    gpu.synchronize(stream(0));
    const double own = share_of(2 * kSecond, round);
    expect(own > 27 && own < 33, "a GPU has its own cap");
    set_cap(10);
    const double kept = share_of(kSecond, round);
    expect(kept > 28 && kept < 32, "which holds instead of that of all");
    set_cap(0, own_cap);
    expect(share_of(kSecond, round) > 95, "and may be none");

    begin(10);
    set_cap(1, own_cap);
    launch(stream(0), 100 * kMillisecond, 1);  // costs 10 s
    gpu.synchronize(stream(0));
    const Nanoseconds from = gpu.now;
    static Nanoseconds lift_at;
    lift_at = from + kSecond;
    cap::host.sleep = [](Nanoseconds length) {
        gpu.now += length + kLateWake;
        if (gpu.now >= lift_at) set_cap(0, own_cap);
    };
    launch(stream(0), kMicrosecond, 2);
    expect(gpu.now - from > kSecond && gpu.now - from < kSecond + 10 * kMillisecond, "lifting it ends a wait");
    cap::host.sleep = sleep;
}

void check_work_ahead() {
    begin(10);
    const Nanoseconds from = gpu.now;
    while (gpu.now < from + kSecond / 10) launch(stream(0), kSecond, 0);
    expect(gpu.work.size() <= 2 && gpu.now - from > 5 * kSecond, "work of unknown length is not queued by the second");

    begin(50);
    for (int index = 0; index < 1000; ++index) launch(stream(0), 10 * kMicrosecond, 0);
    const Nanoseconds queued = gpu.stream(stream(0)).idle_from - gpu.now;
    expect(queued < 5 * kMillisecond, "an asynchronous host is not far ahead");

    begin(50);
    const auto ahead = [](int launches) {
        Nanoseconds most = 0;
        for (int index = 0; index < launches; ++index) {
            launch(stream(0), 40 * kMicrosecond, 0);
            most = std::max(most, gpu.stream(stream(0)).idle_from - gpu.now);
        }
        gpu.synchronize(stream(0));
        return most;
    };
    ahead(100);
    gpu.now += kSecond;
    const Nanoseconds most = ahead(1000);
    std::printf("# after a pause: %.1f ms ahead\n", static_cast<double>(most) / 1e6);
    expect(most < 6 * kMillisecond, "nor is one with much saved up");
}

void check_work_that_waits_for_other_work() {
    begin(10);
    launch(stream(0), 3600 * kSecond, 0);  // for ever, unless what follows comes
    Nanoseconds from = gpu.now;
    launch(stream(1), 10 * kMicrosecond, 1);
    expect(gpu.now - from < 3 * kSecond, "work that is waited for on the GPU is not held back for ever");
    from = gpu.now;
    for (int index = 0; index < 10; ++index) launch(stream(1), 10 * kMicrosecond, 1);
    expect(gpu.now - from < 25 * kSecond, "nor is what comes after it");

    begin(10);
    next_turn = static_cast<std::uint64_t>(gpu.now + kSecond);
    from = gpu.now;
    cap::host.sleep = [](Nanoseconds length) {
        gpu.now += length + kLateWake;
        next_turn += static_cast<std::uint64_t>(length + kMillisecond);  // others of the tree take every turn
    };
    launch(stream(0), 10 * kMicrosecond, 0);
    expect(gpu.now - from < 12 * kSecond, "others cannot take every turn");
    cap::host.sleep = sleep;
}

void check_capture() {
    begin(50);
    for (int index = 0; index < 100; ++index) launch(stream(0), 10 * kMicrosecond, 0);
    gpu.stream(stream(0)).capturing = true;
    const Nanoseconds from = gpu.now;
    for (int index = 0; index < 1000; ++index) launch(stream(0), 10 * kMicrosecond, 0);
    expect(gpu.now - from == 1000 * kLaunch, "launches into a capture do not wait");
    gpu.stream(stream(0)).capturing = false;
    for (int index = 0; index < 100; ++index) launch(stream(0), 10 * kMicrosecond, 0);
    expect(gpu.strange == 0, "nothing is recorded in a capture");
}

void check_contexts() {
    begin(50);
    for (int round = 0; round < 50; ++round) {
        for (int index = 0; index < 100; ++index) launch(stream(0), 10 * kMicrosecond, 0);
        gpu.replace_context();
    }
    expect(gpu.strange == 0, "events of a context that is gone are not touched");

    begin(50);
    for (int index = 0; index < 100; ++index) launch(stream(0), 10 * kMicrosecond, 0);
    gpu.failure = CUDA_ERROR_ILLEGAL_ADDRESS;
    for (int index = 0; index < 10; ++index) launch(stream(0), 10 * kMicrosecond, 0);
    const Nanoseconds from = gpu.now;
    for (int index = 0; index < 1000; ++index) launch(stream(0), 10 * kMicrosecond, 0);
    expect(gpu.now - from < 1000 * (kLaunch + kMicrosecond) + 11 * kMillisecond, "a broken context is left alone");

    begin(50);
    for (std::uintptr_t number = 1; number <= 100; ++number) {
        gpu.current = reinterpret_cast<CUcontext>(number << 8);
        gpu.current_id = number;
        for (int index = 0; index < 10; ++index) launch(stream(0), 10 * kMicrosecond, 0);
    }
    expect(gpu.strange == 0, "many contexts");

    begin(50);
    int before = 0;
    for (int round = 0; round < 600; ++round) {
        if (round == 300) before = gpu.events_made;
        for (std::uintptr_t number = 1; number <= 40; ++number) {
            gpu.current = reinterpret_cast<CUcontext>(number << 8);
            gpu.current_id = 1'000 + number;
            launch(stream(0), 10 * kMicrosecond, 0);
        }
    }
    expect(gpu.events_made <= before + before / 4 && gpu.strange == 0, "contexts in turn take no more events");

    begin(50);
    for (int round = 0; round < 40; ++round) {
        for (std::uintptr_t number = 1; number <= 1'000; ++number) {
            gpu.current = reinterpret_cast<CUcontext>(number << 8);
            gpu.current_id = 10'000 + number;
            launch(stream(0), kMicrosecond, 0);
        }
    }
    expect(gpu.events_made < 10'000 && gpu.strange == 0, "more contexts than there is room for");
    for (std::uintptr_t number = 1; number <= 1'000; ++number) cap::destroyed(reinterpret_cast<CUcontext>(number << 8));
}

// By another thread, between a launch's turn and its end.
void check_contexts_that_go_meanwhile() {
    begin(50);
    {
        cap::Turn turn(driver, stream(0), false, kind(0));
        gpu.replace_context();
        cap::destroyed(gpu.current);
        cap::Turn next(driver, stream(1), false, kind(1));  // of the context that has its place now
        turn.launched(true);
        gpu.launch(stream(1), 20 * kMillisecond);
        next.launched(true);
    }
    gpu.synchronize(stream(1));
    launch(stream(1), kMicrosecond, 2);
    expect(gpu_ns > 19 * kMillisecond && gpu_ns < 21 * kMillisecond && gpu.strange == 0,
           "the end of a launch into a context that is gone is none of the next one's");

    begin(50);
    {
        cap::Turn turn(driver, stream(0), false, kind(0));
        cap::Context* held = cap::Context::enter(driver, stream(0), Caller::here(), gpu.now);
        gpu.replace_context();
        cap::destroyed(gpu.current);  // in a signal handler of whoever has the lock
        held->lock.release();
        turn.launched(true);
    }
    expect(gpu.strange == 0, "nor does it touch the events of one that went while its lock was held");
}

void check_cover() {
    cap::Cover cover;
    for (Nanoseconds at = 0; at < 800; at += 100) cover.add(at, at + 10);  // as many as are told apart
    const Nanoseconds of_nothing = cover.add(1000, 1000) + cover.add(450, 450);
    expect(of_nothing == 0 && cover.add(10, 100) == 90, "work that took no time covers none");
}

void check_failed_launches() {
    begin(10);
    launch(stream(0), 10 * kMillisecond, 0);
    gpu.synchronize(stream(0));
    launch(stream(0), kMicrosecond, 1);
    gpu.synchronize(stream(0));
    const Nanoseconds from = gpu.now;
    for (int index = 0; index < 1000; ++index) {
        cap::Turn turn(driver, stream(0), false, kind(0));
        turn.launched(false);
    }
    expect(gpu.now - from < 400 * kMillisecond, "launches that fail cost nothing");
}

void check_ledger() {
    begin(30);
    const auto round = [] { launch(stream(0), kMillisecond, 0); };
    const Nanoseconds from = gpu.now;
    share_of(5 * kSecond, round);
    const double kept = static_cast<double>(gpu_ns) / static_cast<double>(gpu.busy(from, gpu.now));
    expect(kept > 0.98 && kept < 1.02, "the GPU time that was used is written down");

    begin(30);
    next_turn = static_cast<std::uint64_t>(gpu.now + 3600 * kSecond);
    share_of(kSecond, round);
    expect(gpu.work.size() > 200, "a clock that is far ahead is none of this boot");
}

void check_host_pause() {
    begin(50);
    launch(stream(0), 10 * kMicrosecond, 0);
    gpu.synchronize(stream(0));
    for (int index = 0; index < 200; ++index) {  // busy when the next comes, but idle long before the one after
        launch(stream(0), 10 * kMicrosecond, 0);
        launch(stream(0), 10 * kMicrosecond, 0);
        gpu.synchronize(stream(0));
        gpu.now += 10 * kMillisecond;
    }
    expect(gpu_ns < 6 * kMillisecond, "a pause of the host is not charged");
}

// In real time, on however busy a machine: that nothing hangs and nothing is forgotten, not how exact it is.
void check_threads() {
    begin(30);
    gpu.in_real_time = true;
    gpu.one_at_a_time = true;
    cap::host = {.now = monotonic_ns, .sleep = pause_ns};
    const Nanoseconds from = monotonic_ns();
    std::vector<std::thread> threads;
    for (int number = 0; number < 8; ++number) {
        threads.emplace_back([number, from] {
            while (monotonic_ns() < from + kSecond) {
                const CUstream own = number < 6 ? stream(number / 2) : CU_STREAM_PER_THREAD;
                cap::Turn turn(driver, own, false, kind(number));
                Access()->launch(own, 20 * kMicrosecond, 0);
                turn.launched(true);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    const double share = static_cast<double>(gpu.busy(from, from + kSecond)) / 1e7;
    std::printf("# eight threads at 30 %%: %.1f %% of GPU time\n", share);
    expect(share > 10 && share < 35, "threads share streams");
    expect(gpu.strange == 0, "threads disturb nothing");
}

// Launches of twelve threads in so long, over what a cap of 30 % has room for.
double rate_of(Nanoseconds length) {
    constexpr Nanoseconds kEach = 500 * kMicrosecond;
    std::atomic<int> launches{};
    const Nanoseconds until = monotonic_ns() + length;
    std::vector<std::thread> threads;
    for (int number = 0; number < 12; ++number) {
        threads.emplace_back([&, number] {
            while (monotonic_ns() < until) {
                const CUstream own = stream(number % 4);
                cap::Turn turn(driver, own, false, kind(number));
                Access()->launch(own, kEach, 0);
                turn.launched(true);
                launches.fetch_add(1);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    const double room = 0.3 * static_cast<double>(length) / static_cast<double>(kEach);
    std::printf("# twelve threads: %.2f of the cap\n", launches.load() / room);
    return launches.load() / room;
}

void begin_in_real_time() {
    begin(30);
    gpu.in_real_time = true;
    gpu.one_at_a_time = true;
    cap::host = {.now = monotonic_ns, .sleep = pause_ns};
}

// Once it lasts longer than anybody waits, launches go by until it is over: that is one incident, however many wait.
void check_stalls() {
    begin_in_real_time();
    rate_of(kSecond / 5);
    stall = 400 * kMillisecond;
    expect(rate_of(kSecond) < 1.5, "a driver that stalls for 400 ms does not lift the cap");
    expect(rate_of(kSecond) < 1.5, "nor does it later");
    stall = 1'400 * kMillisecond;
    rate_of(1'600 * kMillisecond);
    expect(stall == 0 && rate_of(kSecond) < 1.5, "the cap holds again after a stall that nobody waited out");
}

// A thread that left the driver by a long jump, or was ended in it, keeps the lock for ever.
void check_lock_that_is_left_behind() {
    begin_in_real_time();
    rate_of(kSecond / 5);
    cap::Context* left = cap::Context::enter(driver, stream(0), Caller{own_space(), 1}, monotonic_ns());
    expect(left != nullptr, "the context is known");
    const Nanoseconds from = monotonic_ns();
    for (int index = 0; index < 100; ++index) cap::Turn(driver, stream(0), false, kind(0)).launched(true);
    expect(monotonic_ns() - from < 3 * kSecond, "nobody waits for it twice");
    gpu.replace_context();
    cap::destroyed(gpu.current);
    expect(rate_of(kSecond) < 1.5, "the next context of the same handle has its cap");
}

}  // namespace

int main() {
    cap::host = {.now = [] { return gpu.now; }, .sleep = sleep};
    cap::start(cap_limit, [](const std::uint8_t (&)[16]) { return cap::Account{&own_cap, &next_turn, &gpu_ns}; });
    for (const Program& program : programs) report(program);
    check_live_changes();
    check_own_cap();
    check_work_ahead();
    check_work_that_waits_for_other_work();
    check_capture();
    check_contexts();
    check_contexts_that_go_meanwhile();
    check_cover();
    check_failed_launches();
    check_ledger();
    check_host_pause();
    check_threads();
    check_stalls();
    check_lock_that_is_left_behind();
    return wrong != 0;
}
