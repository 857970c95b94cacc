// What is known of kernels: what the program said of them by name, and what the driver says of their parameters.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "operations/calls.hpp"
#include "operations/page.hpp"
#include "operations/spin.hpp"
#include "operations/table.hpp"

namespace runlist::operations {

struct Kernel {
    static constexpr int kParameters = 64;
    static constexpr std::uint32_t kParameterBytes = 32764;

    std::atomic<std::uint64_t> load{0};  // its class and, from the third bit on, its SMs
    std::atomic<std::int64_t> duration_ns{0};
    std::uint64_t hash = 0;  // of its whole name
    int parameters = -1;     // how many; negative: not known
    std::array<std::uint16_t, kParameters> sizes{};
    std::array<char, 64> name{};  // or what stands for a longer one: its begin, and its hash

    Cost cost() const {
        const std::uint64_t both = load.load(std::memory_order_relaxed);
        return {.of_class = static_cast<std::uint32_t>(both & 3),
                .sms = static_cast<std::uint32_t>(both >> 2),
                .duration_ns = duration_ns.load(std::memory_order_relaxed)};
    }
    void set(const Cost& cost) {
        load.store(cost.of_class | std::uint64_t{cost.sms} << 2, std::memory_order_relaxed);
        duration_ns.store(cost.duration_ns, std::memory_order_relaxed);
    }
};

// Of the current context's device; 0 where that cannot be told.
std::uint32_t sms_of_device(const Calls& calls);

class Kernels {
  public:
    static constexpr std::size_t kProfiles = 2048;

    // 0, or the negative of an errno value.
    int profile(std::string_view name, const Cost& cost);

    Cost cost_of(const Calls& calls, CUfunction function) {
        const Kernel* there = known_.find(function);
        if (there == nullptr) there = look(calls, function);
        return there != nullptr ? there->cost() : Cost{};
    }

    // visit(kernel) under the lock; false where no more kernels can be known.
    template <typename Visit>
    bool visit(const Calls& calls, CUfunction function, const Visit& visit) {
        if (known_.find(function) == nullptr) look(calls, function);
        const Held held(lock_);
        const Kernel* there = known_.find(function);
        if (there != nullptr) visit(*there);
        return there != nullptr;
    }

    // Of the device on which a kernel was first launched; 0: not known.
    std::uint32_t sms() const { return sms_.load(std::memory_order_relaxed); }

    void forget();  // handles may come again for others

  private:
    struct Profile {
        std::uint64_t hash;  // 0: free
        Cost cost;
    };

    const Kernel* look(const Calls& calls, CUfunction function);
    Profile& place_of(std::uint64_t hash);

    Spin lock_;
    std::size_t count_ = 0;
    std::array<Profile, kProfiles * 2> profiles_{};
    Table<Kernel, 512> known_;
    std::atomic<std::uint32_t> sms_{0};
};

}  // namespace runlist::operations
