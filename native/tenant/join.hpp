// Lending from inside: this process hands the daemon a copy of its RM control descriptor, where the daemon has no right
// to take one itself.
#pragma once

#include <cstdint>

namespace runlist {

// Tells the daemon of a new RM client: one datagram with copies of `control_fd` and, unless it is negative,
// `region_fd`. Found and trusted as every Link. Keeps errno, leaves no descriptor open, and is silent when nobody
// hears. Where the daemon's queue is full it waits for room, up to 0.25 s, and not again before there was some; then it
// is for `join_again` to tell.
//
// The daemon does not believe who the message says it is from: it takes the kernel's word (SCM_CREDENTIALS), and asks
// the driver through the descriptor whether `client` is that process'.
void join(int control_fd, std::uint32_t client, int region_fd);

// Tells of a client that is at work, where there was no room for that before. Does not wait, and costs nothing where
// there was. It tries once in a millisecond.
void join_again(int control_fd, std::uint32_t client, int region_fd);

}  // namespace runlist
