#include "scheduled.hpp"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace operations {
namespace {

constexpr std::uint32_t kAny = 0x1FF;  // beside: all classes beside all
constexpr std::uint32_t kComplementary = 1U << (3 * RL_COMPUTE + RL_MEMORY) | 1U << (3 * RL_MEMORY + RL_COMPUTE);

// The library's, which is preloaded.
template <typename Function>
Function* library(const char* name) {
    auto* found = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
    if (found != nullptr) return found;
    std::fprintf(stderr, "%s: not found\n", name);
    std::_Exit(6);
}
#define LIBRARY(name) library<decltype(::name)>(#name)

void must(int result, const char* what) {
    if (result == 0) return;
    std::fprintf(stderr, "%s: %d\n", what, result);
    std::_Exit(6);
}

rl_admission rule(std::string_view name) {
    rl_admission made{sizeof made, 0, 0, 0, 0};  // exclusive
    if (name == "greedy") made = {sizeof made, kAny, ~0U, 1, -1};
    if (name == "complementary") made = {sizeof made, kComplementary, 66, 1, 20'000};
    if (name == "bounded") made = {sizeof made, 0, 0, 0, 0, 8'000, 20'000};
    if (name == "tiny") made = {sizeof made, kAny, 1, 0, 1};
    return made;
}

}  // namespace

Scheduled::~Scheduled() {
    changing_ = false;
    if (changes_.joinable()) changes_.join();
}

void Scheduled::begin(int clients) {
    clients_ = clients;
    must(LIBRARY(rl_operations_start)(clients), "rl_operations_start");
    auto* profile = LIBRARY(rl_operations_profile);
    must(profile("accumulate_lcg", RL_COMPUTE, 4, 5'000), "rl_operations_profile");
    must(profile("fill_u32", RL_MEMORY, 2, 3'000), "rl_operations_profile");
    const rl_admission made = rule(rule_ == "changing" ? "exclusive" : rule_);
    must(LIBRARY(rl_operations_admission)(&made), "rl_operations_admission");
    if (rule_ != "changing" && !restarts()) return;
    changing_ = true;
    changes_ = std::thread([this] { change(); });
}

void Scheduled::change() {
    constexpr std::array<std::string_view, 5> kRules{"exclusive", "greedy", "complementary", "tiny", "bounded"};
    std::minstd_rand random(programs_ + 1);
    while (changing_) {
        const rl_admission made = rule(kRules.at(random() % kRules.size()));
        may_fail(LIBRARY(rl_operations_admission)(&made), "rl_operations_admission");
        if (restarts() && random() % 4 == 0)
            restart(random() % 4 != 0 ? clients_ : 1 + static_cast<int>(random()) % clients_);
        LIBRARY(rl_operations_profile)(random() % 2 == 0 ? "fill_u32" : "accumulate_lcg",
                                       static_cast<std::uint32_t>(random() % 3), random() % 200, random() % 100'000);
        if (random() % 4 == 0) LIBRARY(rl_operations_log)(random() % 2 == 0);
        std::array<rl_operation, 32> taken;
        LIBRARY(rl_operations_take)(taken.data(), static_cast<int>(taken.size()));
        struct rl_operations_counters counters{};
        LIBRARY(rl_operations_counters)(static_cast<int>(random() % static_cast<unsigned>(clients_)), &counters);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    }
}

void Scheduled::may_fail(int result, const char* what) const {
    if (!restarts()) must(result, what);
}

void Scheduled::restart(int clients) {
    for (int i = 0; i < clients_; ++i) {
        struct rl_operations_counters counters{};
        if (LIBRARY(rl_operations_counters)(i, &counters) != 0) continue;
        launched += counters.launched;
        deferred += counters.deferred;
        opened += counters.opened;
    }
    must(LIBRARY(rl_operations_stop)(), "rl_operations_stop");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    must(LIBRARY(rl_operations_start)(clients), "rl_operations_start");
}

// Where there is no such client now, there soon is one.
void Scheduled::client(int index) {
    while (LIBRARY(rl_operations_client)(index) != 0) {
        may_fail(1, "rl_operations_client");
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

void Scheduled::end() {
    changing_ = false;
    if (changes_.joinable()) changes_.join();
    const auto count = [this] {
        for (int i = 0; i < clients_; ++i) {
            struct rl_operations_counters counters{};
            may_fail(LIBRARY(rl_operations_counters)(i, &counters), "rl_operations_counters");
            launched += counters.launched;
            deferred += counters.deferred;
            opened += counters.opened;
        }
    };
    // Half of them are waited for while the clients' queues go on, the others after these were emptied.
    if (++programs_ % 2 == 0) cuCtxSynchronize();
    const std::uint64_t before = opened;
    count();
    if (opened > before) std::fprintf(stderr, "program %u reached a bound\n%s", programs_, slow_.c_str());
    slow_.clear();
    must(LIBRARY(rl_operations_stop)(), "rl_operations_stop");
}

}  // namespace operations
