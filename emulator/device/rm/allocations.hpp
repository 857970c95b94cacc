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

    // Parameters that are missing are zeros.
    template <typename Parameters>
    Parameters get() const {
        Parameters values{};
        std::memcpy(&values, parameters.data(), parameters.size());
        return values;
    }
    template <typename Parameters>
    void put(const Parameters& values) const {
        std::memcpy(parameters.data(), &values, parameters.size());
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
