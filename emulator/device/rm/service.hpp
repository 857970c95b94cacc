// The driver's ioctls on nvidiactl: allocate, free, control and map, with the statuses and delays of driver 580.
#pragma once

#include <cstdint>
#include <span>

#include "device/rm/tree.hpp"

namespace emulator {

struct RmAnswer {
    int error = 0;   // errno of the ioctl itself
    Time delay = 0;  // from the request to the answer
    int fd = -1;     // to send along; still owned by RM
};

class RmService {
  public:
    RmService(RmTree& tree, std::vector<Gpu>& gpus) : tree_(tree), gpus_(gpus) {}

    // Carries out ioctl `nr`; `argument` and `parameters` are changed in place.
    RmAnswer call(const RmCaller& caller, std::uint32_t nr, std::span<std::byte> argument,
                  std::span<std::byte> parameters, Time now);

  private:
    RmAnswer control(const RmCaller& caller, std::span<std::byte> argument, std::span<std::byte> parameters, Time now);
    RmAnswer allocate(const RmCaller& caller, std::span<std::byte> argument, std::span<std::byte> parameters);
    RmAnswer free(const RmCaller& caller, std::span<std::byte> argument, Time now);
    RmAnswer map(const RmCaller& caller, std::span<std::byte> argument);

    RmTree& tree_;
    std::vector<Gpu>& gpus_;
};

}  // namespace emulator
