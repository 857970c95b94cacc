// Memory by pages, without malloc or a lock.
#pragma once

#include <atomic>
#include <cstddef>

namespace runlist {

// Zeroed, and taken only where they are touched. nullptr when there are none.
void* map_pages(std::size_t bytes);
void unmap_pages(void* pages, std::size_t bytes);

// A child of fork finds them zeroed. False where the kernel cannot do that (before 4.14).
bool wipe_on_fork(void* pages, std::size_t bytes);

// Whether memory is taken of which a child finds what its parent had.
enum class Unwiped { kTaken, kRefused };

// What `place` points to: zeroed memory that a child of fork finds zeroed again, for what is its parent's only. Made
// when it is not there yet. nullptr when there is no memory, or none of the kind asked for.
template <typename Table, Unwiped unwiped = Unwiped::kTaken>
Table* made(std::atomic<Table*>& place) {
    if (Table* there = place.load(std::memory_order_acquire)) return there;
    auto* fresh = static_cast<Table*>(map_pages(sizeof(Table)));
    if (fresh == nullptr) return nullptr;
    const bool wiped = wipe_on_fork(fresh, sizeof(Table));
    Table* there = nullptr;
    if ((wiped || unwiped == Unwiped::kTaken) &&
        place.compare_exchange_strong(there, fresh, std::memory_order_acq_rel)) {
        return fresh;
    }
    unmap_pages(fresh, sizeof(Table));
    return there;
}

}  // namespace runlist
