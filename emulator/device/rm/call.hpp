// A control command as who carries it out sees it.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "device/rm/status.hpp"
#include "device/rm/tree.hpp"

namespace emulator {

// One control call on an object that exists, of the class and with the parameter size that the command asks for.
struct ControlCall {
    RmTree& tree;
    std::vector<Gpu>& gpus;
    const RmCaller& caller;
    std::uint32_t client;
    std::uint32_t handle;
    RmObject* object;  // nullptr: the client itself
    std::span<std::byte> parameters;
    Time now;
    Time delay;  // of the answer; preset from the table

    // The parameters are of the size that the command asks for.
    template <typename Parameters>
    Parameters get() const {
        Parameters values;
        std::memcpy(&values, parameters.data(), sizeof values);
        return values;
    }
    template <typename Parameters>
    void put(const Parameters& values) {
        std::memcpy(parameters.data(), &values, sizeof values);
    }
};

}  // namespace emulator
