#include "tenant/join.hpp"

#include <atomic>

#include "core/guest.hpp"
#include "tenant/link.hpp"

namespace runlist {
namespace {

// A queue has room for ten messages where nobody set more, and this one is sent but once: a job that starts many
// processes at a time, or a neighbour that floods the daemon, must not cost it. To make an RM client takes longer.
constexpr std::int64_t kRoomNs = 250'000'000;
constexpr std::int64_t kPauseNs = 1'000'000;

constinit std::atomic<bool> patient{true};

}  // namespace

void join(int control_fd, std::uint32_t client, int region_fd) {
    Link link;
    if (!link.open()) return;
    const int descriptors[Link::kMaxDescriptors] = {control_fd, region_fd};
    const std::span told(descriptors, region_fd < 0 ? 1 : 2);
    const std::int64_t until = monotonic_ns() + (patient.load(std::memory_order_relaxed) ? kRoomNs : 0);
    bool full = false;
    while ((full = link.send({.kind = Kind::kJoin, .nanoseconds = client}, told) == -EAGAIN) &&
           monotonic_ns() < until) {
        pause_ns(kPauseNs);
    }
    patient.store(!full, std::memory_order_relaxed);
    link.close();
}

}  // namespace runlist
