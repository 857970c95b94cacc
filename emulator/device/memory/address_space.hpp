// What one process's device and pinned host addresses mean in the device's own memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "device/memory/physical.hpp"

namespace emulator {

class AddressSpace {
  public:
    // `limit`: how many bytes of device addresses may be reserved.
    explicit AddressSpace(std::uint64_t limit) : limit_(limit) {}
    AddressSpace(const AddressSpace&) = delete;
    AddressSpace& operator=(const AddressSpace&) = delete;
    ~AddressSpace();

    // Memory of the process itself. False when there is something at the address.
    bool add(std::uint64_t address, std::byte* memory, std::uint64_t bytes);
    // Device addresses, with nothing behind them yet. False when they overlap others, or when there are too many.
    bool reserve(std::uint64_t address, std::uint64_t bytes);
    // What began at `address` by one of the above. False when nothing did.
    bool remove(std::uint64_t address);
    // Puts memory behind a part of a reservation that has none. The memory does not live on by it: when its owner
    // frees it, the addresses lead nowhere. False when that is not possible.
    bool map(std::uint64_t address, std::uint64_t bytes, const std::shared_ptr<MemoryBlock>& memory,
             std::uint64_t offset);
    // Takes it away again: all of what was mapped by one call or more. False when that is not what is there.
    bool unmap(std::uint64_t address, std::uint64_t bytes);

    // The `bytes` bytes at `address`, or nullptr when they do not all exist, in one range.
    std::byte* find(std::uint64_t address, std::uint64_t bytes) const;

  private:
    struct Mapping {
        std::uint64_t bytes;
        std::weak_ptr<MemoryBlock> memory;
    };
    struct Range {
        std::byte* memory;  // nullptr: nothing has been mapped yet
        std::uint64_t bytes;
        bool device;
        bool mirror = false;                          // `memory` is a mapping of our own, made of many blocks
        std::map<std::uint64_t, Mapping> parts = {};  // by offset
    };
    using Ranges = std::map<std::uint64_t, Range>;

    Ranges::const_iterator range_of(std::uint64_t address, std::uint64_t bytes) const;
    bool overlaps(std::uint64_t address, std::uint64_t bytes) const;
    bool make_mirror(Range& range);
    static void drop(const Range& range);

    Ranges ranges_;
    std::uint64_t limit_;
    std::uint64_t reserved_ = 0;
    std::size_t pieces_ = 0;  // mapped in mirrors: each is a mapping of this process
};

}  // namespace emulator
