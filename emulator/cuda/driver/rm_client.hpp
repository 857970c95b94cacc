// The process's client of the resource manager: made as CUDA makes it, and asked for device memory.
#pragma once

#include <cstdint>
#include <set>

#include "cuda/driver/exports.hpp"

namespace emulator::cuda {

// One object of device memory. No handle: none.
struct DeviceMemory {
    std::uint32_t handle = 0;
    std::uint32_t gpu = 0;
    std::uint64_t bytes = 0;  // whole pages of 2 MiB
};

class RmClient {
  public:
    // Makes the client on an open file of nvidiactl, and a device and a subdevice for each GPU.
    CUresult open(int descriptor);

    std::uint32_t handle() const { return handle_; }
    std::uint32_t gpus() const { return gpus_; }

    // CUDA_ERROR_OUT_OF_MEMORY when the GPU has no more, or the process may not have more. In `memory.bytes`: what
    // came, `bytes` rounded up.
    CUresult take(std::uint32_t gpu, std::uint64_t bytes, DeviceMemory& memory);
    void give(const DeviceMemory& memory);

    // Says what the device has made for this client since the last time, as the requests by which CUDA has it made.
    // Only for who watches those in the kernel (door.hpp).
    void repeat_made();

    // A handle for an object of device memory that is made in another way; and back, if it was not made.
    std::uint32_t choose_handle();
    void return_handle(std::uint32_t handle) { free_.insert(handle); }

  private:
    // An object's NV_STATUS; `error` when the ioctl itself failed.
    std::uint32_t allocate(std::uint32_t parent, std::uint32_t& handle, std::uint32_t cls, void* parameters,
                           std::uint32_t parameter_bytes, CUresult& error) const;
    CUresult count_gpus();

    int descriptor_ = -1;
    std::uint32_t handle_ = 0;
    std::uint32_t gpus_ = 0;
    std::uint32_t repeated_ = 0;  // the handle up to which objects were repeated
    std::uint32_t base_ = 0;
    std::uint32_t next_ = 0;        // handle of device memory that has not been used yet
    std::set<std::uint32_t> free_;  // that have, and are free again
};

}  // namespace emulator::cuda
