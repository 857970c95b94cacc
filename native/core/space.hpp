// Whose memory this is. A child of fork has another address space than its parent; threads share one, and so does a
// child of vfork, or of clone with CLONE_VM, though it is another process.
#pragma once

#include <cstdint>

namespace runlist {

// A number that all who share the caller's memory have, and no other whose memory began as a copy of it.
std::uint32_t own_space();

}  // namespace runlist
