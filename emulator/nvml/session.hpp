// What nvmlInit opens: the connection to the device.
#pragma once

#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "shared/protocol.hpp"
#include "shared/unique_fd.hpp"
#include "shared/uuid.hpp"

namespace emulator::nvml {

// A GPU, as its handle names it.
struct Device {
    std::uint32_t index;
};

class Session {
  public:
    // Guards everything, the calls on the connection too.
    static std::mutex lock;
    // Nothing before nvmlInit, after the last nvmlShutdown and in a forked child.
    static Session* get();
    static nvmlReturn_t open();
    static nvmlReturn_t close();

    struct Memory {
        std::uint64_t free;
        std::uint64_t total;
        Uuid uuid;
    };
    std::optional<Memory> memory(std::uint32_t gpu);
    std::optional<std::vector<wire::ListedProcess>> processes(std::uint32_t gpu);

    // The GPU's samples of utilisation, the oldest first.
    std::optional<std::vector<wire::BusySample>> samples(std::uint32_t gpu);

    std::vector<Device> devices;

  private:
    Session() = default;
    bool connect();
    // One answered call: how many bytes came.
    std::size_t ask(const wire::Request& request, std::span<std::byte> answer) const;
    template <typename T, std::uint32_t kMost>
    std::optional<std::vector<T>> list(wire::Call call, std::uint32_t gpu);

    UniqueFd socket_;
    int uses_ = 0;
};

}  // namespace emulator::nvml

// Opens a call: the session as `session`, with the lock held.
#define EMULATOR_NVML_ENTER()                                                \
    const std::lock_guard guard(emulator::nvml::Session::lock);              \
    emulator::nvml::Session* const entered = emulator::nvml::Session::get(); \
    if (!entered) return NVML_ERROR_UNINITIALIZED;                           \
    [[maybe_unused]] emulator::nvml::Session& session = *entered

// The same for calls on a device, whose index becomes `index`.
#define EMULATOR_NVML_ENTER_DEVICE(handle)                                                                          \
    EMULATOR_NVML_ENTER();                                                                                          \
    const auto* const device_ = reinterpret_cast<const emulator::nvml::Device*>(handle);                            \
    if (!device_ || device_ < session.devices.data() || device_ >= session.devices.data() + session.devices.size()) \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                         \
    [[maybe_unused]] const std::uint32_t index = device_->index
