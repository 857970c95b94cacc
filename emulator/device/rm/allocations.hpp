// The classes of which a client may allocate objects by ioctl, as a table.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "device/rm/tree.hpp"

namespace emulator {

// One RM_ALLOC for a client that exists.
struct AllocationCall {
    RmTree& tree;
    std::vector<Gpu>& gpus;
    const RmClient& client;
    std::uint32_t client_handle;
    std::span<std::byte> parameters;  // read, and answered in
    RmObject object;                  // class and parent are set

    template <typename T>
    T get(std::size_t offset) const {
        T value;
        std::memcpy(&value, parameters.data() + offset, sizeof value);
        return value;
    }
    template <typename T>
    void put(std::size_t offset, T value) const {
        std::memcpy(parameters.data() + offset, &value, sizeof value);
    }
};

struct Allocation {
    std::uint32_t cls;
    std::uint32_t parameter_bytes;
    bool parameters_optional;
    // Completes `object`, or returns the status that refuses it.
    std::uint32_t (*make)(AllocationCall& call);
};

// Nothing for a class that clients do not allocate here.
const Allocation* find_allocation(std::uint32_t cls);

}  // namespace emulator
