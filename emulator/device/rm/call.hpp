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

    template <typename T>
    T get(std::size_t offset) const {
        T value;
        std::memcpy(&value, parameters.data() + offset, sizeof value);
        return value;
    }
    template <typename T>
    void put(std::size_t offset, T value) {
        std::memcpy(parameters.data() + offset, &value, sizeof value);
    }
};

}  // namespace emulator
