// Who this process is, and whether another one still lives.
#pragma once

#include <cstdint>

#include "core/guest.hpp"

namespace runlist::region {

inline std::int32_t own_pid() { return static_cast<std::int32_t>(call(SYS_getpid)); }

// This process as the slots of a region know it. What /proc does not tell is 0.
struct Self {
    std::int32_t pid = 0;
    std::uint64_t start_time = 0;     // clock ticks since boot, as outside of any time namespace
    std::uint64_t pid_namespace = 0;  // inode
    std::uint64_t image = 0;          // differs after exec
    bool sees_processes = false;      // /proc is there and shows the processes of our namespace
    std::uint64_t shift = 0;          // what the kernel adds for us to start times, which wraps: our time namespace

    static Self look();
};

// Whether the process of a pid that started at a time ended. A process whose threads still run has not, even if its
// first one did; what cannot be seen lives. A start time of 0 is unknown.
bool ended(const Self& self, std::int32_t pid, std::uint64_t start_time);

}  // namespace runlist::region
