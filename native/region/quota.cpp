#include "region/quota.hpp"

#include <algorithm>

#include "core/guest.hpp"
#include "core/pages.hpp"
#include "core/say.hpp"
#include "region/process.hpp"
#include "region/slots.hpp"

namespace runlist::region {
namespace {

constexpr std::uint64_t kMost = std::uint64_t{1} << 48;  // of one request
constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kPatienceNs = 100 * kMillisecond;   // with others whose requests are under way
constexpr std::int64_t kReapAfterNs = 2 * kMillisecond;    // they may have been killed
constexpr std::int64_t kReapEveryNs = 100 * kMillisecond;  // for questions
constexpr std::int64_t kShortestNs = 5'000;
constexpr std::int64_t kLongestNs = 1 * kMillisecond;

bool is_device(int device) { return device >= 0 && device < static_cast<int>(kDevices); }

// What a tenant wrote over its numbers must not make a sum small.
std::uint64_t sum_of(std::uint64_t one, std::uint64_t other) {
    std::uint64_t sum = 0;
    return __builtin_add_overflow(one, other, &sum) ? kNoLimit : sum;
}

void add_to(std::atomic<std::uint64_t>& count, std::uint64_t bytes) {
    std::uint64_t now = count.load();
    while (!count.compare_exchange_weak(now, sum_of(now, bytes))) {
    }
}

// Never below 0: a child of fork may free what its parent charged, and then has nothing to give back.
void take_off(std::atomic<std::uint64_t>& count, std::uint64_t bytes) {
    std::uint64_t now = count.load();
    while (!count.compare_exchange_weak(now, now - std::min(now, bytes))) {
    }
}

// Waits longer each time, and never as long as another who began at the same moment.
class Backoff {
  public:
    std::int64_t waited_ns() const { return monotonic_ns() - begin_; }

    void wait() {
        random_ = random_ * 6'364'136'223'846'793'005 + 1'442'695'040'888'963'407;
        pause_ns(longest_ / 2 + static_cast<std::int64_t>(random_ >> 33) % longest_);
        longest_ = std::min(longest_ * 2, kLongestNs);
    }

  private:
    std::int64_t begin_ = monotonic_ns();
    std::uint64_t random_ = static_cast<std::uint64_t>(begin_) ^ static_cast<std::uint64_t>(own_pid()) << 32;
    std::int64_t longest_ = kShortestNs;
};

}  // namespace

constinit Quota quota;

void Quota::start(const Region& region) {
    region_ = region;
    forget_old_image(region_);
    on_.store(true, std::memory_order_release);
}

Slot* Quota::own_slot() {
    Known* known = made<Known, Unwiped::kRefused>(known_);
    if (known == nullptr) return claim_slot();
    Slot* slot = known->slot.load(std::memory_order_acquire);
    if (slot == nullptr) {
        slot = claim_slot();
        known->slot.store(slot, std::memory_order_release);
    }
    return slot;
}

Slot* Quota::claim_slot() {
    const std::int32_t pid = own_pid();
    const auto of_this_process = [pid](std::uint64_t own) { return static_cast<std::int32_t>(own >> 32) == pid; };
    std::uint64_t own = own_.load();
    if (!of_this_process(own)) {
        const int index = claim(region_);
        if (index < 0) return nullptr;
        const std::uint64_t claimed = std::uint64_t{static_cast<std::uint32_t>(pid)} << 32 | (index + 1u);
        region_.slot(index).enforced.fetch_or(enforced_.load());
        if (own_.compare_exchange_strong(own, claimed)) {
            own = claimed;
        } else if (own != claimed) {  // another thread was first
            release(region_, index);
        }
    }
    return &region_.slot(static_cast<int>(static_cast<std::uint32_t>(own)) - 1);
}

std::uint64_t Quota::limit(int device) const {
    if (!on()) return kNoLimit;
    const Limit& of_all = region_.header().memory;
    return is_device(device) ? read(region_.device(device).memory, of_all) : read(of_all);
}

bool Quota::charge(int device, std::uint64_t bytes) {
    if (!on()) return true;
    bytes = std::min(bytes, kMost);
    const std::uint64_t most = limit(device);
    Slot* slot = is_device(device) ? own_slot() : nullptr;
    if (slot == nullptr) {
        if (most == kNoLimit) return true;
        if (!said_full_.exchange(true)) {
            say(Level::kError, "the region has no room for another process or GPU: memory is refused to this process");
        }
        return false;
    }
    Use& use = slot->use[device];
    if (most == kNoLimit) {
        add_to(use.asking, bytes);
        return true;
    }
    bool full = false;
    return ask(device, use, bytes, full) || ask_again(device, use, bytes, full);
}

void Quota::count_refusal(int device) {
    if (on() && is_device(device)) region_.device(device).refusals.fetch_add(1);
}

// One attempt. `full`: there would be no room without the requests of others either.
bool Quota::ask(int device, Use& use, std::uint64_t bytes, bool& full) {
    add_to(use.asking, bytes);
    const Sum sum = add_up(device);
    const std::uint64_t most = limit(device);
    if (sum_of(sum.held, sum.asking) <= most) return true;
    take_off(use.asking, bytes);
    full = sum_of(sum.held, bytes) > most;
    return false;
}

bool Quota::ask_again(int device, Use& use, std::uint64_t bytes, bool full) {
    Backoff backoff;
    for (bool reaped = false;;) {
        const std::int64_t waited = backoff.waited_ns();
        const bool look = !reaped && (full || waited > kReapAfterNs);
        reaped = reaped || look;
        if (!look || reap(region_) == 0) {
            if (full || waited > kPatienceNs) return false;
            backoff.wait();
        }
        if (ask(device, use, bytes, full)) return true;
    }
}

void Quota::settle(int device, std::uint64_t asked, std::uint64_t got, bool overhead) {
    Slot* slot = on() && is_device(device) ? own_slot() : nullptr;
    if (slot == nullptr) return;
    Use& use = slot->use[device];
    if (got != 0) add_to(overhead ? use.overhead : use.held, std::min(got, kMost));
    take_off(use.asking, std::min(asked, kMost));
}

void Quota::refund(int device, std::uint64_t bytes, bool overhead) {
    Slot* slot = on() && is_device(device) ? own_slot() : nullptr;
    if (slot == nullptr) return;
    Use& use = slot->use[device];
    take_off(overhead ? use.overhead : use.held, std::min(bytes, kMost));
}

std::uint64_t Quota::used(int device) {
    if (!on() || !is_device(device)) return 0;
    reap_sometimes();
    return add_up(device).held;
}

std::uint64_t Quota::used_by(int device, std::int32_t pid) {
    if (!on() || !is_device(device)) return 0;
    reap_sometimes();
    const std::uint64_t own_namespace = Self::look().pid_namespace;
    for (int index = 0, used = slots_used(region_); index < used; ++index) {
        const Slot& slot = region_.slot(index);
        const std::uint64_t found = slot.identity.load();
        if (pid_of(found) != pid || !counts(found) || slot.pid_namespace.load() != own_namespace) continue;
        return sum_of(slot.use[device].held.load(), slot.use[device].overhead.load());
    }
    return 0;
}

void Quota::enforce(std::uint64_t bits) {
    if (!on()) return;
    enforced_.fetch_or(bits);
    if (Slot* slot = own_slot()) slot->enforced.fetch_or(bits);
}

// In the order that the proof needs: `asking` before the two that it is moved to.
Quota::Sum Quota::add_up(int device) const {
    Sum sum{.asking = 0, .held = region_.device(device).unseen.load()};
    for (int index = 0, used = slots_used(region_); index < used; ++index) {
        const Slot& slot = region_.slot(index);
        if (!counts(slot.identity.load())) continue;
        const Use& use = slot.use[device];
        sum.asking = sum_of(sum.asking, use.asking.load());
        sum.held = sum_of(sum.held, sum_of(use.held.load(), use.overhead.load()));
    }
    return sum;
}

void Quota::reap_sometimes() {
    const std::int64_t now = monotonic_ns();
    std::int64_t last = reaped_ns_.load(std::memory_order_relaxed);
    if (last != 0 && now - last < kReapEveryNs) return;
    if (reaped_ns_.compare_exchange_strong(last, now, std::memory_order_relaxed)) reap(region_);
}

}  // namespace runlist::region
