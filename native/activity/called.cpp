#include "activity/called.hpp"

#include "core/guest.hpp"
#include "core/pages.hpp"

namespace runlist::activity {
namespace {

constexpr unsigned kMost = 256;

struct Table {
    std::atomic<unsigned> next;
    Called all[kMost];
};

constinit std::atomic<Table*> table{nullptr};

Called* take() {
    Table* there = made<Table, Unwiped::kRefused>(table);
    if (there == nullptr) return nullptr;
    for (unsigned tried = 0; tried < kMost; ++tried) {
        Called& one = there->all[there->next.fetch_add(1, std::memory_order_relaxed) % kMost];
        if (!one.taken.load(std::memory_order_relaxed) && !one.taken.exchange(true)) return &one;
    }
    return nullptr;
}

}  // namespace

Called* give(Own& own, AnyFunction function, void* data) {
    region::Slot* slot = own.slot.load(std::memory_order_acquire);
    Called* one = slot == nullptr ? nullptr : take();
    if (one == nullptr) return nullptr;
    one->function = function;
    one->data = data;
    one->slot = slot;
    one->work = slot->activity.work.load();
    one->began_ns = monotonic_ns();
    slot->activity.waiting.fetch_add(1);
    return one;
}

// It stays taken: should the driver call it all the same, what it calls is still there.
void refuse(Called& one) {
    one.slot->activity.waiting.fetch_sub(1);
    one.refused.store(true);
}

Wanted come_to(Called& one) {
    const Wanted wanted{.function = one.function, .data = one.data};
    if (one.refused.load()) return wanted;
    Own* own = telling();
    // Of several that are called one after the other, the first ends the wait.
    if (own != nullptr && one.slot->activity.work.load() == one.work &&
        own->first_ns.load(std::memory_order_relaxed) != 0) {
        waited(*own, *one.slot, one.began_ns);
    }
    one.slot->activity.waiting.fetch_sub(1);
    one.taken.store(false, std::memory_order_release);
    return wanted;
}

}  // namespace runlist::activity
