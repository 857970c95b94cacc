#include "activity/called.hpp"

#include "core/guest.hpp"
#include "core/pages.hpp"

namespace runlist::activity {
namespace {

constexpr unsigned kMost = 256;

struct Table {
    std::atomic<unsigned> next;
    std::atomic<unsigned> awaited;  // how many are
    Called all[kMost];
};

constinit std::atomic<Table*> table{nullptr};

Called* take(Table& there) {
    for (unsigned tried = 0; tried < kMost; ++tried) {
        Called& one = there.all[there.next.fetch_add(1, std::memory_order_relaxed) % kMost];
        Called::State state = Called::kFree;
        if (one.state.load(std::memory_order_relaxed) == Called::kFree &&
            one.state.compare_exchange_strong(state, Called::kTaken)) {
            return &one;
        }
    }
    return nullptr;
}

// Ends the wait for it, if there still is one. First `then` is called, with the process' slot.
template <typename Then>
void end(Table& there, Called& one, const Then& then) {
    Called::State state = Called::kAwaited;
    if (!one.state.compare_exchange_strong(state, Called::kForgotten)) return;
    region::Slot& slot = *telling()->slot.load(std::memory_order_acquire);
    then(slot);
    slot.activity.waiting.fetch_sub(1);
    there.awaited.fetch_sub(1);
}

}  // namespace

Called* give(Own& own, AnyFunction function, void* data, const void* context) {
    region::Slot* slot = own.slot.load(std::memory_order_acquire);
    Table* there = slot == nullptr ? nullptr : made<Table, Unwiped::kRefused>(table);
    Called* one = there == nullptr ? nullptr : take(*there);
    if (one == nullptr) return nullptr;
    one->function = function;
    one->data = data;
    one->context = context;
    one->work = slot->activity.work.load();
    one->began_ns = monotonic_ns();
    there->awaited.fetch_add(1);
    slot->activity.waiting.fetch_add(1);
    one->state.store(Called::kAwaited);
    return one;
}

void forget(Called& one) {
    end(*table.load(std::memory_order_acquire), one, [](const region::Slot&) {});
}

void forget_all() {
    Table* there = table.load(std::memory_order_acquire);
    if (there == nullptr) return;
    for (Called& one : there->all) forget(one);
}

void forget_all_of(const void* context) {
    Table* there = table.load(std::memory_order_acquire);
    if (there == nullptr || context == nullptr) return;
    for (Called& one : there->all) {
        if (one.state.load(std::memory_order_acquire) <= Called::kTaken || one.context != context) continue;
        forget(one);
        Called::State state = Called::kForgotten;
        one.state.compare_exchange_strong(state, Called::kFree);
    }
}

Wanted come_to(Called& one) {
    const Wanted wanted{.function = one.function, .data = one.data};
    Table& there = *table.load(std::memory_order_acquire);
    end(there, one, [&](region::Slot& slot) {
        Own& own = *telling();
        // Of several that are called one after the other, the first ends the wait. Where a thread waits in a call of
        // the driver, the wait is that one.
        const bool waits =
            own.first_ns.load(std::memory_order_relaxed) != 0 && slot.activity.waiting.load() <= there.awaited.load();
        if (waits && slot.activity.work.load() == one.work) waited(own, slot, one.began_ns);
    });
    one.state.store(Called::kFree, std::memory_order_release);
    return wanted;
}

}  // namespace runlist::activity
