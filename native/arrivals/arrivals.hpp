// What comes in over sockets and pipes, and which of it leads to work for a GPU: that is announced before the program
// has read it.
//
// A message is known by where it came in, by its bytes and its length (notes.hpp), so a health check is told from a
// request. The first submission after one says that it led to work, and how soon; where there is none for a while it
// did not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activity/activity.hpp"

namespace runlist::arrivals {

// Bytes were read from a descriptor. Asks whether anybody wants to know: `own.attends()`, before.
[[gnu::noinline, gnu::cold]] void came(activity::Own& own, int fd, const void* bytes, std::size_t count);

// A descriptor is said to have something to read. Looks at what that is before the program reads it, which may take a
// while where other threads do that. False where nothing of it counts.
[[gnu::noinline, gnu::cold]] bool readable(activity::Own& own, int fd);

// A descriptor came in at a listening socket.
[[gnu::noinline, gnu::cold]] void accepted(int fd);

// Work is submitted, and something is pending.
void worked(activity::Own& own);

// Whether our process' memory is this process': a child of vfork must say nothing for its parent.
bool is_ours(const activity::Own& own);

// Has the GPU load this process' context, for work that comes in so many nanoseconds. preload.cpp says how.
using Touch = void (*)(std::int64_t lead_ns);
extern const Touch touch;

}  // namespace runlist::arrivals
