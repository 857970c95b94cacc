// Requests as a program says itself where they begin and end: runlist.h.
#include <cerrno>

#include "activity/activity.hpp"
#include "arrivals/arrivals.hpp"
#include "core/guest.hpp"
#include "runlist.h"
#include "tenant/tenant.hpp"

using namespace runlist;

int rl_request_begin(void) {
    activity::Own* own = activity::telling();
    region::Slot* slot = own == nullptr ? nullptr : own->slot.load(std::memory_order_acquire);
    if (slot == nullptr) return say_announcement(0);
    if (!arrivals::is_ours(*own)) return 0;
    slot->activity.open.fetch_add(1);
    if ((slot->watch.load() & region::kAnnouncements) == 0) return 0;
    own->asked_ns.store(monotonic_ns(), std::memory_order_relaxed);
    activity::announce(*own, 0);
    arrivals::touch(0);
    return 0;
}

int rl_request_end(void) {
    activity::Own* own = activity::telling();
    region::Slot* slot = own == nullptr ? nullptr : own->slot.load(std::memory_order_acquire);
    if (slot == nullptr || !arrivals::is_ours(*own)) return 0;
    std::uint64_t open = slot->activity.open.load();
    do {
        if (open == 0) return -EINVAL;
    } while (!slot->activity.open.compare_exchange_weak(open, open - 1));
    if (open == 1) slot->activity.ended.fetch_add(1);
    return 0;
}
