#include "arrivals/learnt.hpp"

#include <algorithm>

#include "core/relaxed.hpp"

namespace runlist::arrivals {
namespace {

std::uint32_t hits_of(std::uint32_t counts) { return counts & 0xFFFF; }
std::uint32_t misses_of(std::uint32_t counts) { return counts >> 16; }
std::uint32_t less(std::uint32_t count) { return count == 0 ? 0 : count - 1; }

}  // namespace

Learnt::Place Learnt::find(std::uint64_t kind) {
    const int first = static_cast<int>((kind >> 32) % (kPlaces / kWays)) * kWays;
    int weakest = first;
    std::uint32_t least = ~std::uint32_t{0};
    for (int place = first; place < first + kWays; ++place) {
        const std::uint64_t there = entries_[place].kind.load(kRelaxed);
        if (there == kind) return static_cast<Place>(place);
        const std::uint32_t counts = entries_[place].counts.load(kRelaxed);
        const std::uint32_t worth = there == 0 ? 0 : 1 + std::max(hits_of(counts), misses_of(counts));
        if (worth < least) {
            least = worth;
            weakest = place;
        }
    }
    Entry& entry = entries_[weakest];
    if (least > 1) {
        const std::uint32_t counts = entry.counts.load(kRelaxed);
        entry.counts.store(less(misses_of(counts)) << 16 | less(hits_of(counts)), kRelaxed);
        return kNowhere;
    }
    entry.counts.store(0, kRelaxed);
    entry.lead_us.store(0, kRelaxed);
    entry.kind.store(kind, kRelaxed);
    return static_cast<Place>(weakest);
}

void Learnt::led_to_work(Place place, std::int64_t lead_ns) {
    if (place == kNowhere) return;
    Entry& entry = entries_[place];
    const auto lead_us = static_cast<std::uint32_t>(std::clamp<std::int64_t>(lead_ns / 1000, 1, 1'000'000));
    const std::uint32_t known_us = entry.lead_us.load(kRelaxed);
    entry.lead_us.store(known_us == 0 ? lead_us : (7 * known_us + lead_us) / 8, kRelaxed);
    count(entry, 1, 0);
}

void Learnt::led_nowhere(Place place) {
    if (place != kNowhere) count(entries_[place], 0, 1);
}

Learnt::Record Learnt::at(Place place) const {
    if (place == kNowhere) return {};
    const Entry& entry = entries_[place];
    const std::uint32_t counts = entry.counts.load(kRelaxed);
    return {hits_of(counts), misses_of(counts), entry.lead_us.load(kRelaxed) * std::int64_t{1000}};
}

void Learnt::count(Entry& entry, std::uint32_t hits, std::uint32_t misses) {
    const std::uint32_t counts = entry.counts.load(kRelaxed);
    hits += hits_of(counts);
    misses += misses_of(counts);
    if (hits + misses > kMost) {
        hits /= 2;
        misses /= 2;
    }
    entry.counts.store(misses << 16 | hits, kRelaxed);
}

}  // namespace runlist::arrivals
