// Threads take turns on one clock of the compute cap: what they were given stays within the cap's share of the time
// that passed, and nobody starves.
#include <atomic>
#include <thread>
#include <vector>

#include "cap/clock.hpp"
#include "checks/check.hpp"

namespace {

using runlist::cap::Clock;
using runlist::cap::wall;

constexpr int kThreads = 4;
constexpr std::int64_t kStart = 1'000'000'000;
constexpr std::int64_t kEnd = kStart + 20'000'000'000;
constexpr std::int64_t kStep = 50'000;
constexpr std::int64_t kWork = 1'000'000;  // GPU time of one piece

std::atomic<std::uint64_t> word;
std::atomic<std::int64_t> now{kStart};
std::atomic<std::int64_t> granted;

std::int64_t own_share(std::uint64_t cap) {
    Clock clock(word);
    std::int64_t mine = 0;
    for (std::int64_t at = now.load(); at < kEnd; at = now.fetch_add(kStep) + kStep) {
        if (clock.take(at, 0, wall(kWork, cap)) == 0) mine += kWork;
    }
    granted.fetch_add(mine);
    return mine;
}

void at_cap(std::uint64_t cap) {
    std::int64_t shares[kThreads]{};
    word = 0;
    now = kStart;
    granted = 0;
    std::vector<std::thread> threads;
    for (int index = 0; index < kThreads; ++index) threads.emplace_back([&, index] { shares[index] = own_share(cap); });
    for (std::thread& thread : threads) thread.join();
    const std::int64_t may = (kEnd - kStart + Clock::kSavedNs) * static_cast<std::int64_t>(cap) / 10'000;
    REQUIRE(granted.load() <= may + kThreads * kWork);
    REQUIRE(granted.load() >= may * 9 / 10 - kThreads * kWork);
}

// Words that no clock wrote.
void damaged() {
    for (const std::uint64_t bits : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1}}) {
        word = bits;
        Clock clock(word);
        for (int count = 0; count < 100; ++count) {
            const std::int64_t early = clock.take(kStart, 0, kWork);
            REQUIRE(early >= 0 && early <= Clock::kAheadNs);
            clock.correct(kStart, -kWork);
            clock.correct(kStart, INT64_MAX / 4);
            clock.forgive(kStart);
        }
    }
    REQUIRE(wall(kWork, 0) > 0 && wall(kWork, ~std::uint64_t{0}) == kWork);
}

}  // namespace

int main() {
    damaged();
    for (const std::uint64_t cap : {1'000u, 3'000u, 10'000u}) at_cap(cap);
    std::puts("ok");
    return 0;
}
