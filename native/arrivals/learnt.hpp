// Which messages led to work before, and how soon. Nothing here takes a lock: what two threads or a signal handler
// write at once costs a count.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace runlist::arrivals {

// A fixed table of kinds of messages, by a number that is not 0. All zeros is empty.
class Learnt {
  public:
    using Place = std::uint16_t;
    static constexpr int kPlaces = 1024;
    static constexpr Place kNowhere = 0xFFFF;

    // Where a kind is. One that is new takes the place of one of which nothing is known, or gets none: where something
    // is known of all of its places, one of them is believed less each time.
    Place find(std::uint64_t kind);

    void led_to_work(Place place, std::int64_t lead_ns);
    void led_nowhere(Place place);

    // How often it led to work, and how often not: of late, as old counts are halved.
    struct Record {
        std::uint32_t hits;
        std::uint32_t misses;
        std::int64_t lead_ns;
    };
    Record at(Place place) const;

  private:
    static constexpr int kWays = 4;  // places that a kind may have
    static constexpr std::uint32_t kMost = 64;

    struct Entry {
        std::atomic<std::uint64_t> kind;
        std::atomic<std::uint32_t> counts;   // misses << 16 | hits
        std::atomic<std::uint32_t> lead_us;  // a mean that follows
    };

    void count(Entry& entry, std::uint32_t hits, std::uint32_t misses);

    std::array<Entry, kPlaces> entries_;
};

}  // namespace runlist::arrivals
