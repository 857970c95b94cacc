#include "core/pages.hpp"

#include <sys/mman.h>

#include "core/guest.hpp"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

namespace runlist {

void* map_pages(std::size_t bytes) {
    const long mapped =
        call(SYS_mmap, 0L, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1L, 0L);
    return mapped < 0 && mapped > -4096 ? nullptr : reinterpret_cast<void*>(mapped);
}

void unmap_pages(void* pages, std::size_t bytes) { call(SYS_munmap, pages, bytes); }

bool wipe_on_fork(void* pages, std::size_t bytes) { return call(SYS_madvise, pages, bytes, MADV_WIPEONFORK) == 0; }

}  // namespace runlist
