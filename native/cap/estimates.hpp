// How long each kind of work takes on the GPU, as far as it was measured.
#pragma once

#include <algorithm>
#include <cstdint>

namespace runlist::cap {

// A small table by key (a function, a graph). Keys that fall on the same entry take turns in it: an estimate only paces
// work until its time was measured.
class Estimates {
  public:
    using Index = std::uint8_t;

    // The entry of a key.
    Index find(const void* work) {
        const auto number = reinterpret_cast<std::uintptr_t>(work) >> 4;
        const auto index = static_cast<Index>(number * 0x9E37'79B9'7F4A'7C15ull >> 56);
        if (entries_[index].work != work) entries_[index] = {work, 0, 0, false};
        return index;
    }

    bool known(Index index) const { return entries_[index].nanoseconds != 0; }

    // Whether it was never seen to take so long, and was measured the last time.
    bool is_shorter(Index index, std::int64_t nanoseconds) const {
        return known(index) && !entries_[index].doubted && entries_[index].longest < nanoseconds;
    }

    // It went by unmeasured: it is to be measured the next time.
    void doubt(Index index) { entries_[index].doubted = true; }

    // GPU time to charge for it beforehand, ns.
    std::int64_t of(Index index) const { return known(index) ? entries_[index].nanoseconds : kUnknownNs; }

    // It took `length`, of which `charged` was charged; the rest was somebody else's already.
    void learn(Index index, std::int64_t charged, std::int64_t length) {
        set(index, known(index) ? of(index) + (charged - of(index)) / 4 : charged);
        see(index, length);
    }

    // Together with others of `estimated` it took `length`, of which `charged` was charged.
    void learn_together(Index index, std::int64_t charged, std::int64_t length, std::int64_t estimated) {
        const std::int64_t share = of(index) * std::min(charged, kMost) / std::max<std::int64_t>(estimated, 1);
        set(index, of(index) + (std::min(share, of(index) * kLeap) - of(index)) / 4);
        see(index, length > 2 * estimated ? length : 0);
    }

    // It takes so long at least.
    void raise(Index index, std::int64_t nanoseconds) {
        set(index, std::max(of(index), nanoseconds));
        see(index, nanoseconds);
    }

  private:
    static constexpr std::int64_t kUnknownNs = 100'000;
    static constexpr std::int64_t kMost = 4'000'000'000;  // fits an entry; longer work is measured while it runs
    static constexpr std::int64_t kLeap = 8;              // one long one among many says little of the others

    void set(Index index, std::int64_t nanoseconds) {
        entries_[index].nanoseconds = static_cast<std::uint32_t>(std::clamp<std::int64_t>(nanoseconds, 1, kMost));
        entries_[index].doubted = false;
    }

    // What it took once is forgotten slowly.
    void see(Index index, std::int64_t length) {
        const std::int64_t before = entries_[index].longest;
        entries_[index].longest = static_cast<std::uint32_t>(std::clamp(length, before - before / 64, kMost));
    }

    struct Entry {
        const void* work;
        std::uint32_t nanoseconds;  // 0: never measured
        std::uint32_t longest;
        bool doubted;
    };
    Entry entries_[256]{};
};

}  // namespace runlist::cap
