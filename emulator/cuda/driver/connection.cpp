#include "cuda/driver/connection.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <cstdlib>
#include <span>

#include "shared/datagram.hpp"

namespace emulator::cuda {

CUresult Connection::open() {
    const char* directory = std::getenv(names::kEmulatedGpu);
    if (!directory) return CUDA_ERROR_NO_DEVICE;
    directory_ = directory;
    const CUresult result = open_both();
    if (result != CUDA_SUCCESS)
        for (UniqueFd* fd : {&control_, &gpu_}) *fd = UniqueFd();
    return result;
}

CUresult Connection::open_both() {
    open_node();  // and closed again
    control_ = connect_to(directory_ + "/" + wire::kControlSocket);
    gpu_ = connect_to(directory_ + "/" + wire::kGpuSocket);
    if (!control_ || !gpu_) return CUDA_ERROR_NO_DEVICE;
    if (const CUresult result = rm.open(control_.get()); result != CUDA_SUCCESS) return result;
    wire::Request request{.call = wire::Call::kHello};
    request.hello = {.client = rm.handle(), .mps = std::getenv(names::kMpsPipes) != nullptr};
    if (const char* priority = std::getenv(names::kMpsPriority))
        request.hello.mps_priority = static_cast<std::uint32_t>(std::strtoul(priority, nullptr, 0));
    wire::Reply reply{};
    UniqueFd shared;
    if (call(request, reply, &shared) != CUDA_SUCCESS || !shared) return CUDA_ERROR_NO_DEVICE;
    void* page = ::mmap(nullptr, sizeof(wire::ControlPage), PROT_READ | PROT_WRITE, MAP_SHARED, shared.get(), 0);
    if (page == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    page_ = static_cast<wire::ControlPage*>(page);
    return CUDA_SUCCESS;
}

CUresult Connection::call(const wire::Request& request, wire::Reply& reply, UniqueFd* fd) {
    if (post(request) != CUDA_SUCCESS) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    Datagram received = receive_datagram(gpu_.get(), std::as_writable_bytes(std::span(&reply, 1)), 0);
    if (received.bytes != sizeof reply) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (fd) *fd = std::move(received.fd);
    return static_cast<CUresult>(reply.result);
}

CUresult Connection::call(const wire::Request& request) {
    wire::Reply reply{};
    return call(request, reply);
}

CUresult Connection::post(const wire::Request& request) const {
    const bool sent = send_datagram(gpu_.get(), std::as_bytes(std::span(&request, 1)), -1, 0);
    return sent ? CUDA_SUCCESS : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

bool Connection::lost() const {
    pollfd state{gpu_.get(), 0, 0};
    return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLERR)) != 0;
}

UniqueFd Connection::open_node() const {
    return UniqueFd(::open((directory_ + "/" + wire::kOpenedFile).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace emulator::cuda
