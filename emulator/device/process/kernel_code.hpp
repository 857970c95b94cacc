// The emulated kernels: how long each takes on the modelled GPU, and what it does to memory.
#pragma once

#include <cstdint>
#include <optional>

#include "device/memory/address_space.hpp"
#include "model/runlist.hpp"
#include "shared/kernels.hpp"

namespace emulator {

// One launch. Blocks are executed in order, each exactly once, in as many pieces as the schedule makes of it.
class KernelRun {
  public:
    // Nothing when the kernel, its grid or its parameters make no sense here: a grid of more dimensions than the kernel
    // indexes, or matrices larger than the emulator computes.
    static std::optional<KernelRun> make(const wire::KernelLaunch& launch);

    Work work() const;
    // Executes blocks up to `fraction` (0 to 1) of the grid. False on an address outside the process's memory.
    bool run_to(double fraction, const AddressSpace& memory);
    // For a holding kernel: does the flag let it end? Nothing on a bad address.
    std::optional<bool> released(const AddressSpace& memory) const;

  private:
    explicit KernelRun(const wire::KernelLaunch& launch) : launch_(launch) {}

    template <typename T>
    T parameter(std::uint32_t index) const;
    std::uint64_t blocks() const;
    std::uint64_t threads() const;
    bool run_blocks(std::uint64_t first, std::uint64_t last, const AddressSpace& memory) const;

    wire::KernelLaunch launch_;
    std::uint64_t executed_ = 0;  // blocks
};

}  // namespace emulator
