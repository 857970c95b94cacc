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
        Called::State state = Called::kFree;
        if (one.state.compare_exchange_strong(state, Called::kTaken)) return &one;
    }
    return nullptr;
}

// Whether somebody waited for it, which is over.
bool end(Called& one) {
    Called::State state = Called::kAwaited;
    return one.state.compare_exchange_strong(state, Called::kForgotten);
}

}  // namespace

Called* give(Own& own, AnyFunction function, void* data) {
    region::Slot* slot = own.slot.load(std::memory_order_acquire);
    Called* one = slot == nullptr ? nullptr : take();
    if (one == nullptr) return nullptr;
    one->function = function;
    one->data = data;
    one->work = slot->activity.work.load();
    one->began_ns = monotonic_ns();
    slot->activity.waiting.fetch_add(1);
    one->state.store(Called::kAwaited);
    return one;
}

void forget(Called& one) {
    if (end(one)) telling()->slot.load(std::memory_order_acquire)->activity.waiting.fetch_sub(1);
}

void forget_all() {
    Table* there = table.load(std::memory_order_acquire);
    if (there == nullptr) return;
    for (Called& one : there->all) forget(one);
}

Wanted come_to(Called& one) {
    const Wanted wanted{.function = one.function, .data = one.data};
    const std::uint64_t work = one.work;
    const std::int64_t began_ns = one.began_ns;
    if (end(one)) {
        Own& own = *telling();
        region::Slot& slot = *own.slot.load(std::memory_order_acquire);
        // Of several that are called one after the other, the first ends the wait.
        if (slot.activity.work.load() == work && own.first_ns.load(std::memory_order_relaxed) != 0)
            waited(own, slot, began_ns);
        slot.activity.waiting.fetch_sub(1);
    }
    one.state.store(Called::kFree, std::memory_order_release);
    return wanted;
}

}  // namespace runlist::activity
