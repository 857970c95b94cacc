// Zeroed memory that a child of fork finds zeroed again, for what is its parent's only. No malloc, no lock.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>

#include "core/guest.hpp"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace runlist {

// Kernels before 4.14 do not wipe: then a child finds what its parent had.
enum class Unwiped { kTaken, kRefused };

// What `place` points to; made when it is not there yet. nullptr when there is no memory, or none of the kind asked
// for.
template <typename Table, Unwiped unwiped = Unwiped::kTaken>
Table* made(std::atomic<Table*>& place) {
    if (Table* there = place.load(std::memory_order_acquire)) return there;
    const long mapped = call(SYS_mmap, 0L, long{sizeof(Table)}, long{PROT_READ | PROT_WRITE},
                             long{MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE}, -1L, 0L);
    if (mapped < 0 && mapped > -4096) return nullptr;
    const bool wiped = call(SYS_madvise, mapped, long{sizeof(Table)}, long{MADV_WIPEONFORK}) == 0;
    if (!wiped && unwiped == Unwiped::kRefused) {
        call(SYS_munmap, mapped, long{sizeof(Table)});
        return nullptr;
    }
    auto* fresh = reinterpret_cast<Table*>(mapped);
    Table* there = nullptr;
    if (place.compare_exchange_strong(there, fresh, std::memory_order_acq_rel)) return fresh;
    call(SYS_munmap, mapped, long{sizeof(Table)});
    return there;
}

}  // namespace runlist
