// What is free of a range of numbers: offsets of memory, addresses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace emulator {

class FreeRanges {
  public:
    struct Range {
        std::uint64_t start;
        std::uint64_t bytes;
    };

    // Nothing of [start, start + bytes) is free yet.
    void add(std::uint64_t start, std::uint64_t bytes) {
        if (bytes == 0) return;
        const auto after = ranges_.find(start + bytes);
        if (after != ranges_.end()) {
            bytes += after->second;
            ranges_.erase(after);
        }
        const auto next = ranges_.lower_bound(start);
        if (next != ranges_.begin() && std::prev(next)->first + std::prev(next)->second == start)
            std::prev(next)->second += bytes;
        else
            ranges_.emplace(start, bytes);
    }

    // The lowest place with room. `alignment` is a power of two.
    std::optional<std::uint64_t> take(std::uint64_t bytes, std::uint64_t alignment = 1) {
        for (const auto& [start, size] : ranges_) {
            const std::uint64_t aligned = (start + alignment - 1) & ~(alignment - 1);
            if (aligned - start > size || size - (aligned - start) < bytes) continue;
            take_at(aligned, bytes);
            return aligned;
        }
        return std::nullopt;
    }

    // False when not all of it is free.
    bool take_at(std::uint64_t start, std::uint64_t bytes) {
        auto it = ranges_.upper_bound(start);
        if (it == ranges_.begin()) return false;
        --it;
        const auto [first, size] = *it;
        if (start - first > size || bytes > size - (start - first)) return false;
        ranges_.erase(it);
        if (start > first) ranges_.emplace(first, start - first);
        if (first + size > start + bytes) ranges_.emplace(start + bytes, first + size - start - bytes);
        return true;
    }

    // As much as there is in the lowest place, and no more than `bytes`. Something is free.
    Range take_some(std::uint64_t bytes) {
        const Range taken{ranges_.begin()->first, std::min(bytes, ranges_.begin()->second)};
        take_at(taken.start, taken.bytes);
        return taken;
    }

  private:
    std::map<std::uint64_t, std::uint64_t> ranges_;  // start -> bytes; neighbours are joined
};

}  // namespace emulator
