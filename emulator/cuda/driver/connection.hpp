// The two sockets of this process to the device, and the memory that it shares with the device.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/driver/exports.hpp"
#include "cuda/driver/rm_client.hpp"
#include "shared/protocol.hpp"
#include "shared/unique_fd.hpp"

namespace emulator::cuda {

class Connection {
  public:
    // Opens both, and an RM client on the first.
    CUresult open();

    // One answered call. The descriptor that came with the answer, or none, goes to `fd`.
    CUresult call(const wire::Request& request, wire::Reply& reply, UniqueFd* fd = nullptr);
    // One of which only the result is of interest.
    CUresult call(const wire::Request& request);
    // What there is to say of a GPU: its memory and its UUID.
    CUresult describe(std::uint32_t gpu, wire::Reply& reply) {
        return call({.call = wire::Call::kMemoryInfo, .gpu = gpu}, reply);
    }
    // One call that is not answered.
    CUresult post(const wire::Request& request) const;
    // Has the device gone?
    bool lost() const;
    // A descriptor of the node that watchers of the directory watch; none where it cannot be opened.
    UniqueFd open_node() const;

    std::uint32_t gpus() const { return rm.gpus(); }
    wire::ControlPage& page() const { return *page_; }

    RmClient rm;

  private:
    CUresult open_both();

    std::string directory_;
    UniqueFd control_;
    UniqueFd gpu_;
    wire::ControlPage* page_ = nullptr;
};

}  // namespace emulator::cuda
