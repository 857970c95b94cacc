// What is known of handles of the driver: buckets of one cache line of keys, which are read without a lock. A key whose
// bucket is full has no place.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace runlist::operations {

template <typename Value, std::size_t buckets>
class Table {
    static_assert((buckets & (buckets - 1)) == 0);
    static constexpr std::size_t kWays = 8;

  public:
    // nullptr for none, and for no key: that is what a free place has.
    Value* find(const void* key) {
        if (key == nullptr) return nullptr;
        const std::size_t first = place_of(key);
        for (std::size_t at = first; at < first + kWays; ++at) {
            if (keys_[at].load(std::memory_order_acquire) == key) return &values_[at];
        }
        return nullptr;
    }

    // The one that is there, or a new one made by `make(value)`, or one that `may_go(value)` makes room. Under a lock
    // of the caller's.
    template <typename Make, typename MayGo>
    Value* add(const void* key, const Make& make, const MayGo& may_go) {
        if (Value* there = find(key)) return there;
        const std::size_t first = place_of(key);
        for (int round = 0; round < 2; ++round) {
            for (std::size_t at = first; at < first + kWays; ++at) {
                const void* held = keys_[at].load(std::memory_order_relaxed);
                if (round == 0 ? held != nullptr : !may_go(values_[at])) continue;
                keys_[at].store(nullptr, std::memory_order_release);
                make(values_[at]);
                keys_[at].store(key, std::memory_order_release);
                used_[first / kWays / 64].fetch_or(bit_of(first), std::memory_order_release);
                return &values_[at];
            }
        }
        return nullptr;
    }

    void remove(const void* key) {
        if (key == nullptr) return;
        const std::size_t first = place_of(key);
        for (std::size_t at = first; at < first + kWays; ++at) {
            if (keys_[at].load(std::memory_order_relaxed) == key) keys_[at].store(nullptr, std::memory_order_release);
        }
        for (std::size_t at = first; at < first + kWays; ++at) {
            if (keys_[at].load(std::memory_order_relaxed) != nullptr) return;
        }
        used_[first / kWays / 64].fetch_and(~bit_of(first), std::memory_order_release);
    }

    template <typename Visit>
    void each(const Visit& visit) {
        for (std::size_t word = 0; word < used_.size(); ++word) {
            for (std::uint64_t left = used_[word].load(std::memory_order_acquire); left != 0; left &= left - 1) {
                const std::size_t first = (word * 64 + static_cast<std::size_t>(std::countr_zero(left))) * kWays;
                for (std::size_t at = first; at < first + kWays; ++at) {
                    if (const void* key = keys_[at].load(std::memory_order_acquire)) visit(key, values_[at]);
                }
            }
        }
    }

  private:
    static std::size_t place_of(const void* key) {
        constexpr std::uint64_t kGolden = 0x9E37'79B9'7F4A'7C15;
        return (reinterpret_cast<std::uint64_t>(key) * kGolden >> 40 & (buckets - 1)) * kWays;
    }

    static constexpr std::uint64_t bit_of(std::size_t first) { return std::uint64_t{1} << first / kWays % 64; }

    std::array<std::atomic<std::uint64_t>, (buckets + 63) / 64> used_;  // which buckets hold any
    alignas(64) std::array<std::atomic<const void*>, buckets * kWays> keys_;
    std::array<Value, buckets * kWays> values_;
};

}  // namespace runlist::operations
