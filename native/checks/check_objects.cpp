// Threads put device memory into the table of RM objects and take it out again: each piece comes out once, as it went
// in, whoever asks for it.
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "checks/check.hpp"
#include "rm/objects.hpp"

namespace {

using runlist::rm::Memory;
using runlist::rm::Objects;

constexpr int kThreads = 4;
constexpr std::uint32_t kObjects = 25'000;
constexpr std::uint32_t kClient = 0xC1D0'0001;
constexpr std::uint32_t kFirst = 0x5C00'0000;
constexpr std::uint32_t kStride = 7;  // handles are not dense

constinit Objects objects;

std::uint64_t bytes_of(std::uint32_t number) { return (number % 97 + 1) * std::uint64_t{2 << 20}; }

Memory memory_of(std::uint32_t number, int parent) {
    return {.bytes = bytes_of(number),
            .device = static_cast<int>(number % 16),
            .parent = parent,
            .overhead = number % 3 == 0};
}

std::uint32_t handle_of(std::uint32_t number) { return kFirst + number * kStride; }

void in_threads(auto&& body) {
    std::vector<std::thread> threads;
    for (int index = 0; index < kThreads; ++index) threads.emplace_back([&, index] { body(index); });
    for (std::thread& thread : threads) thread.join();
}

// Each thread its own handles, in tables that all of them make together.
void apart() {
    in_threads([](int index) {
        for (std::uint32_t number = index; number < kObjects; number += kThreads) {
            REQUIRE(objects.put(kClient, handle_of(number), memory_of(number, index)).has_value());
        }
        for (std::uint32_t number = index; number < kObjects; number += 2 * kThreads) {
            const Memory taken = objects.take(kClient, handle_of(number));
            REQUIRE(taken.bytes == bytes_of(number) && taken.device == static_cast<int>(number % 16));
            REQUIRE(taken.parent == index && taken.overhead == (number % 3 == 0));
            REQUIRE(objects.take(kClient, handle_of(number)).bytes == 0);
        }
    });
}

// All threads take the same, one by one, by parent and altogether.
void together() {
    std::atomic<std::uint64_t> taken{0};
    std::uint64_t left = 0;
    for (std::uint32_t number = 0; number < kObjects; ++number) {
        if (number % (2 * kThreads) >= kThreads) left += bytes_of(number);
    }
    in_threads([&](int index) {
        const auto count = [&](const Memory& memory) { taken.fetch_add(memory.bytes); };
        if (index == 0) objects.take_below(kClient, runlist::rm::Parents{}.set(1), count);
        for (std::uint32_t number = 0; number < kObjects / 2; ++number) count(objects.take(kClient, handle_of(number)));
        if (index == kThreads - 1) objects.take_below(kClient, runlist::rm::Parents{}.set(), count);
    });
    objects.take_all(kClient, [&](const Memory& memory) { taken.fetch_add(memory.bytes); });
    REQUIRE(taken.load() == left);
}

// What is asked of handles that are none.
void strange() {
    for (const std::uint32_t handle : {0u, 1u, kClient, ~0u, 0x8000'0000u}) {
        REQUIRE(objects.take(kClient, handle).bytes == 0);
        REQUIRE(objects.take(handle, handle).bytes == 0);
        REQUIRE(objects.put(kClient, handle, memory_of(5, 0))->bytes == 0);
        REQUIRE(objects.put(kClient, handle, memory_of(6, 0))->bytes == bytes_of(5));
        REQUIRE(objects.take(kClient, handle).bytes == bytes_of(6));
    }
}

}  // namespace

int main() {
    strange();
    apart();
    together();
    std::puts("ok");
    return 0;
}
