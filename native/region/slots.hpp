// Which process has which slot of a region, and taking back those of processes that ended.
#pragma once

#include <cstdint>

#include "region/layout.hpp"
#include "region/region.hpp"

namespace runlist::region {

constexpr std::uint64_t identity(std::int32_t pid, SlotState state) {
    return std::uint64_t{static_cast<std::uint32_t>(state)} << 32 | static_cast<std::uint32_t>(pid);
}

constexpr std::int32_t pid_of(std::uint64_t identity) { return static_cast<std::int32_t>(identity); }

constexpr SlotState state_of(std::uint64_t identity) { return static_cast<SlotState>(identity >> 32); }

// Whether what the slot says is held by somebody.
constexpr bool counts(std::uint64_t identity) {
    return state_of(identity) == SlotState::kClaimed || state_of(identity) == SlotState::kForeign;
}

// How many slots were ever claimed.
int slots_used(const Region& region);

// This process' slot: the one that it has, or a free one. -1 when none is free, not even after taking some back.
int claim(const Region& region);

// Empties a slot that this process claimed and does not need.
void release(const Region& region, int index);

// Empties the slot that this process had before exec: the driver freed what it held.
void forget_old_image(const Region& region);

// Takes back the slots of processes that ended. Says how many.
int reap(const Region& region);

// Whether nobody who lives holds anything there.
bool is_vacant(const Region& region);

}  // namespace runlist::region
