// Processes of several threads take and give memory at a limit that changes, and some are killed in the middle. What is
// held together never passes the limit; in the end nothing is held.
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>
#include <vector>

#include "checks/check.hpp"
#include "region/quota.hpp"

namespace {

using runlist::checks::Numbers;
using runlist::region::quota;

constexpr std::uint64_t kPiece = 2 << 20;
constexpr std::uint64_t kLimit = 40 * kPiece;
constexpr int kProcesses = 4;
constexpr int kThreads = 3;
constexpr int kRounds = 300;
constexpr int kDuels = 15'000;
constexpr int kBetweenStops = 400;  // us
constexpr int kStopped = 100;
constexpr int kKilled = 8;
constexpr std::uint8_t kUuid[16] = {1, 2, 3};

// Memory that a driver would have given out.
struct Driver {
    std::atomic<std::uint64_t> given;
    std::atomic<std::uint64_t> refused;
};

bool take(Driver& driver, int device, std::uint64_t asked, std::uint64_t got, bool overhead) {
    if (!quota.charge(device, asked)) {
        driver.refused.fetch_add(1);
        return false;
    }
    REQUIRE(driver.given.fetch_add(got) + got <= kLimit);
    quota.settle(device, asked, got, overhead);
    return got != 0;
}

void give(Driver& driver, int device, std::uint64_t bytes, bool overhead) {
    driver.given.fetch_sub(bytes);
    quota.refund(device, bytes, overhead);
}

void work(Driver& driver, int device, std::uint64_t seed, int rounds) {
    Numbers numbers(seed);
    struct Held {
        std::uint64_t bytes;
        bool overhead;
    };
    std::vector<Held> held;
    for (int round = 0; round < rounds; ++round) {
        const std::uint64_t asked = kPiece * (1 + numbers.below(8));
        const Held one{numbers.below(8) == 0 ? 0 : asked, numbers.below(4) == 0};
        if (take(driver, device, asked, one.bytes, one.overhead)) held.push_back(one);
        while (held.size() > numbers.below(6)) {
            give(driver, device, held.back().bytes, held.back().overhead);
            held.pop_back();
        }
        if (numbers.below(32) == 0) REQUIRE(quota.used_by(device, ::getpid()) <= 2 * kLimit);
    }
    for (const Held& one : held) give(driver, device, one.bytes, one.overhead);
}

void on_alarm(int) { ::usleep(kStopped); }

// Each piece is all there is, so that any two that are given at once are one too many. A timer stops everybody again
// and again, wherever they are, for long enough that the others pass by.
void duel(Driver& driver, int device) {
    const itimerval often{{0, kBetweenStops}, {0, kBetweenStops}};
    const itimerval never{};
    ::signal(SIGALRM, on_alarm);
    ::setitimer(ITIMER_REAL, &often, nullptr);
    for (int round = 0; round < kDuels; ++round) {
        if (take(driver, device, kLimit, kLimit, round % 2 == 0)) {
            give(driver, device, kLimit, round % 2 == 0);
        }
    }
    ::setitimer(ITIMER_REAL, &never, nullptr);
}

[[noreturn]] void process(Driver& driver, int device, std::uint64_t seed) {
    duel(driver, device);
    std::vector<std::thread> threads;
    for (int index = 0; index < kThreads; ++index) {
        threads.emplace_back([&, index] { work(driver, device, seed * kThreads + index, kRounds); });
    }
    for (std::thread& thread : threads) thread.join();
    ::_exit(0);
}

void race(Driver& driver, int device) {
    for (int index = 0; index < kProcesses; ++index) {
        if (::fork() == 0) process(driver, device, static_cast<std::uint64_t>(index) + 1);
    }
    for (int index = 0; index < kProcesses; ++index) {
        int status = -1;
        REQUIRE(::wait(&status) > 0 && status == 0);
    }
    REQUIRE(driver.given.load() == 0 && driver.refused.load() > 0);
    REQUIRE(quota.used(device) == 0);
}

// The killed ones work on a driver of their own, which nobody cleans up behind them.
void killed(int device) {
    for (int index = 0; index < kKilled; ++index) {
        auto& driver = runlist::checks::shared<Driver>();
        const pid_t child = ::fork();
        if (child == 0) {
            work(driver, device, static_cast<std::uint64_t>(index) + 100, 1 << 30);
            ::_exit(0);
        }
        ::usleep(static_cast<useconds_t>(500 + 1777 * index));
        REQUIRE(::kill(child, SIGKILL) == 0);
        REQUIRE(::waitpid(child, nullptr, 0) == child);
    }
    REQUIRE(quota.charge(device, kLimit));
    quota.settle(device, kLimit, kLimit, false);
    REQUIRE(!quota.charge(device, kPiece));
    REQUIRE(quota.used(device) == kLimit);
    quota.refund(device, kLimit, false);
    REQUIRE(quota.used(device) == 0);
}

// A child has a copy of what its parent knows, and may give back what only the parent was charged for.
void heirs(int device) {
    for (const bool overhead : {false, true}) {
        REQUIRE(quota.charge(device, 2 * kPiece));
        quota.settle(device, 2 * kPiece, 2 * kPiece, overhead);
        const pid_t child = ::fork();
        if (child == 0) {
            quota.refund(device, kPiece, overhead);
            REQUIRE(quota.used_by(device, ::getpid()) == 0 && quota.used(device) == 2 * kPiece);
            REQUIRE(quota.charge(device, kPiece));
            quota.settle(device, kPiece, kPiece, overhead);
            quota.refund(device, 2 * kPiece, overhead);
            REQUIRE(quota.used_by(device, ::getpid()) == 0 && quota.used(device) == 2 * kPiece);
            ::_exit(0);
        }
        int status = -1;
        REQUIRE(::waitpid(child, &status, 0) == child && status == 0);
        quota.refund(device, 2 * kPiece, overhead);
        REQUIRE(quota.used(device) == 0);
    }
}

}  // namespace

int main() {
    const runlist::checks::Folder folder;
    const auto region = folder.region({.memory = kLimit});
    const int device = region.device_index(kUuid);
    REQUIRE(device == 0 && region.device_index(kUuid) == 0);
    quota.start(region);
    REQUIRE(quota.on() && quota.limit(device) == kLimit);
    heirs(device);
    race(runlist::checks::shared<Driver>(), device);
    killed(device);
    std::puts("ok");
    return 0;
}
