// The operations of one client that wait: records of any length, in order, in a ring of bytes. One thread at a time
// writes, which the client's lock sees to; one reads. A record is read where it lies and then taken off, so that who
// waits for the ring to be empty waits for the driver's word as well.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace runlist::operations {

class Queue {
  public:
    static constexpr std::size_t kBytes = std::size_t{1} << 20;
    static constexpr std::size_t kMost = kBytes / 4;  // of a record
    static constexpr std::size_t kAlign = 16;

    struct Head {
        std::uint32_t bytes;  // with the head
        std::uint32_t skip;   // whether it only fills the ring's end
        std::uint64_t number;
    };
    static_assert(sizeof(Head) == kAlign);

    // Operations so far, and those that were taken off.
    std::uint64_t written() const { return written_.load(std::memory_order_acquire); }
    std::uint64_t done() const { return done_.load(); }
    bool is_empty() const { return done() == written(); }

    // Room for a record after its head; nullptr while there is none.
    void* reserve(std::size_t bytes) {
        const std::size_t whole = (sizeof(Head) + bytes + kAlign - 1) / kAlign * kAlign;
        if (whole > kMost) return nullptr;
        std::uint64_t tail = tail_.load(std::memory_order_relaxed);
        const std::uint64_t taken = head_.load(std::memory_order_acquire);
        const std::uint64_t left = kBytes - tail % kBytes;
        // Where nothing waits it goes on at the begin, in memory that was used a moment ago.
        const bool skips = left < whole || (taken == tail && left != kBytes && left + whole <= kBytes);
        const std::uint64_t needed = skips ? left + whole : whole;
        if (tail + needed - taken > kBytes) return nullptr;
        if (skips) {
            *at(tail) = {.bytes = static_cast<std::uint32_t>(left), .skip = 1, .number = 0};
            tail += left;
        }
        Head* head = at(tail);
        *head = {.bytes = static_cast<std::uint32_t>(whole),
                 .skip = 0,
                 .number = written_.load(std::memory_order_relaxed) + 1};
        reserved_ = tail + whole;
        return head + 1;
    }

    // The record that was reserved is there. Returns its number.
    std::uint64_t commit() {
        const std::uint64_t number = written_.load(std::memory_order_relaxed) + 1;
        written_.store(number, std::memory_order_release);
        tail_.store(reserved_, std::memory_order_release);
        return number;
    }

    // The oldest record; nullptr for none.
    void* front() {
        std::uint64_t head = head_.load(std::memory_order_relaxed);
        if (head == tail_.load(std::memory_order_acquire)) return nullptr;
        if (at(head)->skip != 0) {
            head += at(head)->bytes;
            head_.store(head, std::memory_order_release);
        }
        return at(head) + 1;
    }

    static std::uint64_t number_of(const void* record) { return (static_cast<const Head*>(record) - 1)->number; }

    void pop() {
        const std::uint64_t head = head_.load(std::memory_order_relaxed);
        const std::uint64_t number = at(head)->number;
        head_.store(head + at(head)->bytes, std::memory_order_release);
        done_.store(number);  // before it is looked who waits for it
    }

  private:
    Head* at(std::uint64_t position) { return reinterpret_cast<Head*>(bytes_ + position % kBytes); }

    alignas(64) std::atomic<std::uint64_t> written_{0};
    std::atomic<std::uint64_t> tail_{0};
    std::uint64_t reserved_ = 0;
    alignas(64) std::atomic<std::uint64_t> done_{0};
    std::atomic<std::uint64_t> head_{0};
    alignas(64) std::byte bytes_[kBytes];
};

}  // namespace runlist::operations
