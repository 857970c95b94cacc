#include "tenant/join.hpp"

#include <atomic>

#include "core/guest.hpp"
#include "tenant/link.hpp"

namespace runlist {
namespace {

// A queue has room for ten messages where nobody set more: a job that starts many processes at a time, or a neighbour
// that floods the daemon, must not cost this one. To make an RM client takes longer.
constexpr std::int64_t kWaitsForRoomNs = 250'000'000;
constexpr std::int64_t kPauseNs = 1'000'000;

constinit std::atomic<bool> patient{true};

// Clients of which nobody was told, for want of room; 0 is none. A program has one for CUDA and one for NVML.
constinit std::atomic<std::uint32_t> untold[8]{};
constinit std::atomic<bool> any{false};
constinit std::atomic<std::int64_t> tried_ns{0};

void keep(std::uint32_t client) {
    for (std::atomic<std::uint32_t>& each : untold) {
        std::uint32_t nobody = 0;
        if (each.load() == client || each.compare_exchange_strong(nobody, client)) break;
    }
    any.store(true, std::memory_order_relaxed);
}

bool take_out(std::uint32_t client) {
    bool found = false;
    bool others = false;
    for (std::atomic<std::uint32_t>& each : untold) {
        std::uint32_t expected = client;
        if (!found && client != 0 && each.compare_exchange_strong(expected, 0)) found = true;
        others |= each.load() != 0;
    }
    any.store(others, std::memory_order_relaxed);
    return found;
}

}  // namespace

void join_again(int control_fd, std::uint32_t client, int region_fd) {
    if (!any.load(std::memory_order_relaxed)) [[likely]]
        return;
    const std::int64_t now = monotonic_ns();
    std::int64_t before = tried_ns.load(std::memory_order_relaxed);
    if (now - before < kPauseNs || !tried_ns.compare_exchange_strong(before, now) || !take_out(client)) return;
    patient.store(false, std::memory_order_relaxed);
    join(control_fd, client, region_fd);
}

void join(int control_fd, std::uint32_t client, int region_fd) {
    Link link;
    if (!link.open()) return;
    const int descriptors[Link::kMaxDescriptors] = {control_fd, region_fd};
    const std::span told(descriptors, region_fd < 0 ? 1 : 2);
    const std::int64_t until = monotonic_ns() + (patient.load(std::memory_order_relaxed) ? kWaitsForRoomNs : 0);
    bool full = false;
    while ((full = link.send({.kind = Kind::kJoin, .nanoseconds = client}, told) == -EAGAIN) &&
           monotonic_ns() < until) {
        pause_ns(kPauseNs);
    }
    patient.store(!full, std::memory_order_relaxed);
    if (full) keep(client);
    link.close();
}

}  // namespace runlist
