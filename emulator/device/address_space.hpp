// What one process's device and pinned host addresses mean in the device's own memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace emulator {

class AddressSpace {
  public:
    void add(std::uint64_t address, std::byte* memory, std::uint64_t bytes) { ranges_[address] = {memory, bytes}; }
    void remove(std::uint64_t address) { ranges_.erase(address); }

    // The `bytes` bytes at `address`, or nullptr when they are not all within one allocation.
    std::byte* find(std::uint64_t address, std::uint64_t bytes) const {
        auto it = ranges_.upper_bound(address);
        if (it == ranges_.begin()) return nullptr;
        --it;
        const std::uint64_t offset = address - it->first;
        if (offset >= it->second.bytes || bytes > it->second.bytes - offset) return nullptr;
        return it->second.memory + offset;
    }

  private:
    struct Range {
        std::byte* memory;
        std::uint64_t bytes;
    };
    std::map<std::uint64_t, Range> ranges_;
};

}  // namespace emulator
