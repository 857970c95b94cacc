// Waiting for several words at a time: futex_waitv(2), Linux 5.16.
#pragma once

#include <array>
#include <cstdint>

namespace runlist::actuator {

// What it is to wait for in one call, and whose that is.
class Waiting {
  public:
    static constexpr unsigned kMost = 128;  // the kernel's

    // Why this kernel cannot do it: an errno value, or 0.
    static int unable();

    void clear() { count_ = 0; }
    bool full() const { return count_ == kMost; }
    // Wait while the word has this value.
    void add(const void* word, std::uint32_t value);
    unsigned count() const { return count_; }
    // Do not wait for those from the `count`th on.
    void take_back(unsigned count) { count_ = count; }

    // The index of a word that somebody waked, or the negative of an errno value: EAGAIN where a word has another value
    // already, EFAULT where one cannot be read.
    long wait();
    // Whether it can be waited for a word by itself.
    bool can_wait(unsigned index);

  private:
    // struct futex_waitv, which older headers lack.
    struct Entry {
        std::uint64_t value;
        std::uint64_t address;
        std::uint32_t flags;
        std::uint32_t reserved;
    };
    static_assert(sizeof(Entry) == 24);

    std::array<Entry, kMost> entries_;
    unsigned count_ = 0;
};

}  // namespace runlist::actuator
