// The memory quota of a process tree: this process' part.
#pragma once

#include <atomic>
#include <cstdint>

#include "region/region.hpp"

namespace runlist::region {

// Without locks, so nothing waits for a process that was killed or stopped, and all of it may be called from signal
// handlers and by children of fork, each of which gets a slot of its own at its first charge.
//
// An allocation is counted in three steps: `charge` before the driver is asked, `settle` with its answer, `refund`
// after the memory was freed. The tree never holds more than the limit:
//
//   charge  asking += n; sum = all of asking, then held + overhead; sum <= limit: go on, else asking -= n
//   settle  held += got; asking -= n        (got <= n)
//   refund  held -= n
//
// All of these are sequentially consistent, so they are in one order. Of two charges that went on, take the one whose
// `asking +=` is later in that order. Its sum is read after both additions. What the earlier charge added is then in
// `asking`, or was moved to `held`; a move adds to `held` before it takes from `asking` and the sum reads `asking`
// first, so the sum contains it at least once. By induction the last of any set of charges that went on saw all of
// them, and found the total within the limit; settling never raises the total, refunding lowers it. A new slot is made
// known (identity, slots_used) before anything is added in it, so the sum reads it too.
//
// To the sum comes what the daemon found that the tree holds and no slot tells (`unseen`). Sums saturate: a number that
// a tenant wrote makes them larger, never smaller.
//
// The sum may count a move twice, and two that ask together may each see the other and both give way. So a charge for
// which only the requests of others leave no room tries again for a while.
class Quota {
  public:
    // Once, before other threads are there. What this process held before exec is no longer counted.
    void start(const Region& region);

    bool on() const { return on_.load(std::memory_order_acquire); }
    const Region& region() const { return region_; }

    // A GPU's index; its first use claims one. -1 when there is none.
    int device(const std::uint8_t (&uuid)[16]) const { return on() ? region_.device_index(uuid) : -1; }

    // Before the driver is asked for memory. False: over the limit, and nothing is charged. Each `true` needs its
    // settle.
    bool charge(int device, std::uint64_t bytes);

    // After the driver's answer to what was charged with `asked`. `got` is 0 when it refused, and never above `asked`.
    void settle(int device, std::uint64_t asked, std::uint64_t got, bool overhead);

    // Counts an allocation of the tree's as refused, where the GPU has an entry.
    void count_refusal(int device);

    void refund(int device, std::uint64_t bytes, bool overhead);

    // What the tree holds, and one process of it as its slot tells (0 when it has none). Processes that ended are taken
    // back first, a few times a second at most.
    std::uint64_t used(int device);
    std::uint64_t used_by(int device, std::int32_t pid);

    std::uint64_t limit(int device) const;

    // Says what is at work in this process, and in its children of fork: bits of Enforced.
    void enforce(std::uint64_t bits);

    // This process' slot, or nullptr when none is free.
    Slot* own_slot();

  private:
    struct Sum {
        std::uint64_t asking = 0;
        std::uint64_t held = 0;
    };

    // This process' slot once it is known; a child of fork finds none.
    struct Known {
        std::atomic<Slot*> slot;
    };

    Slot* claim_slot();
    Sum add_up(int device) const;
    bool ask(int device, Use& use, std::uint64_t bytes, bool& full);
    bool ask_again(int device, Use& use, std::uint64_t bytes, bool full);
    void reap_sometimes();

    Region region_;
    std::atomic<bool> on_{false};
    std::atomic<Known*> known_{nullptr};
    std::atomic<std::uint64_t> enforced_{0};
    std::atomic<std::uint64_t> own_{0};  // pid << 32 | slot + 1, of the process that claimed it
    std::atomic<std::int64_t> reaped_ns_{0};
    std::atomic<bool> said_full_{false};
};

extern constinit Quota quota;

}  // namespace runlist::region
