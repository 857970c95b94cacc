// GPUs that this process' RM clients opened: which device and subdevice objects are which GPU of the region.
#pragma once

#include <atomic>
#include <cstdint>

#include "rm/objects.hpp"

namespace runlist::rm {

class Devices {
  public:
    // A device object was made.
    void add_device(std::uint32_t client, std::uint32_t object);

    // A subdevice was made below a device.
    void add_subdevice(std::uint32_t client, std::uint32_t device, std::uint32_t object);

    // The subdevice to ask for the UUID of an entry's GPU; 0 when that is known, or there is none to ask.
    std::uint32_t to_ask(int index) const;

    // A subdevice said its UUID.
    void identify(std::uint32_t client, std::uint32_t subdevice, const std::uint8_t (&uuid)[16]);

    // An object's index in the table; kUnknownParent when it is no device or subdevice.
    int find(std::uint32_t client, std::uint32_t object) const;

    // The index in the region of the GPU of an entry. One that is not known has the index of a UUID of zeros.
    int in_region(int index) const;

    // The entries of an object and of those below it, and of a whole client.
    Parents below(std::uint32_t client, std::uint32_t object) const;
    Parents of_client(std::uint32_t client) const;

    // Makes entries free: their objects are no more.
    void release(const Parents& parents);

  private:
    struct Entry {
        std::atomic<std::uint64_t> key;     // client << 32 | object; 0: free
        std::atomic<std::uint32_t> parent;  // of a subdevice: its device's entry, 1-based; 0 for a device
        std::atomic<std::uint32_t> region;  // index in the region, 1-based; 0: not known
    };

    struct Table {
        Entry entries[kUnknownParent];
    };

    static constexpr std::uint64_t kInTheMaking = 1;

    static std::uint64_t key(std::uint32_t client, std::uint32_t object) {
        return std::uint64_t{client} << 32 | object;
    }

    void add(std::uint32_t client, std::uint32_t object, std::uint32_t parent);
    Entry* device_of(int index) const;

    std::atomic<Table*> table_{nullptr};
};

}  // namespace runlist::rm
