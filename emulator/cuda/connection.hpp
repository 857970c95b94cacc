// The two sockets of this process to the device, and the memory that it shares with the device.
#pragma once

#include <cstdint>
#include <string>

#include "../clock.hpp"
#include "../protocol.hpp"
#include "exports.hpp"
#include "rm_client.hpp"

namespace emulator::cuda {

class Connection {
  public:
    // Opens both, and an RM client on the first.
    CUresult open();

    // One answered call. The descriptor that came with the answer, or -1, goes to `fd`.
    CUresult call(wire::Request& request, wire::Reply& reply, int* fd = nullptr);
    // One call that is not answered.
    CUresult post(const wire::Request& request) const;
    // Has the device gone?
    bool lost() const;
    // A descriptor of the node that watchers of the directory watch; -1 where it cannot be opened.
    int open_node() const;

    std::uint32_t gpus() const { return rm.gpus(); }
    wire::ControlPage& page() const { return *page_; }

    RmClient rm;

  private:
    bool connect_to(const char* name, int& fd) const;

    std::string directory_;
    int control_ = -1;
    int gpu_ = -1;
    wire::ControlPage* page_ = nullptr;
};

}  // namespace emulator::cuda
