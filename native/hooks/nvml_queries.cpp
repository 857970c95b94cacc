#include "hooks/nvml_queries.hpp"

#include <sys/mman.h>

#include "core/guest.hpp"

namespace runlist::hooks {
Scratch::Scratch(std::size_t bytes) : memory_(nullptr), bytes_(bytes) {
    const long made = call(SYS_mmap, 0L, static_cast<long>(bytes), long{PROT_READ | PROT_WRITE},
                           long{MAP_PRIVATE | MAP_ANONYMOUS}, -1L, 0L);
    if (made > 0) memory_ = reinterpret_cast<void*>(made);
}

Scratch::~Scratch() {
    if (memory_ != nullptr) call(SYS_munmap, static_cast<const void*>(memory_), static_cast<long>(bytes_));
}

}  // namespace runlist::hooks
