#include "connection.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>

#include "../datagram.hpp"

namespace emulator::cuda {
bool Connection::connect_to(const char* name, int& fd) const {
    const std::string path = directory_ + "/" + name;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return false;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

CUresult Connection::open() {
    const char* directory = std::getenv(names::kEmulatedGpu);
    if (!directory) return CUDA_ERROR_NO_DEVICE;
    directory_ = directory;
    const auto give_up = [this](CUresult result) {
        for (int* fd : {&control_, &gpu_}) {
            if (*fd >= 0) ::close(*fd);
            *fd = -1;
        }
        return result;
    };
    if (const int node = open_node(); node >= 0) ::close(node);
    if (!connect_to(wire::kControlSocket, control_) || !connect_to(wire::kGpuSocket, gpu_))
        return give_up(CUDA_ERROR_NO_DEVICE);
    if (const CUresult result = rm.open(control_); result != CUDA_SUCCESS) return give_up(result);
    wire::Request request{.call = wire::Call::kHello};
    request.hello = {.client = rm.handle(), .mps = std::getenv(names::kMpsPipes) != nullptr};
    if (const char* priority = std::getenv(names::kMpsPriority))
        request.hello.mps_priority = static_cast<std::uint32_t>(std::strtoul(priority, nullptr, 0));
    wire::Reply reply{};
    int fd = -1;
    if (call(request, reply, &fd) != CUDA_SUCCESS || fd < 0) return give_up(CUDA_ERROR_NO_DEVICE);
    void* page = ::mmap(nullptr, sizeof(wire::ControlPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (page == MAP_FAILED) return give_up(CUDA_ERROR_OUT_OF_MEMORY);
    page_ = static_cast<wire::ControlPage*>(page);
    return CUDA_SUCCESS;
}

CUresult Connection::call(wire::Request& request, wire::Reply& reply, int* fd) {
    if (post(request) != CUDA_SUCCESS) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    Datagram received = receive_datagram(gpu_, std::as_writable_bytes(std::span(&reply, 1)), 0);
    if (received.bytes != sizeof reply) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (fd) *fd = received.fd.release();
    return static_cast<CUresult>(reply.result);
}

CUresult Connection::post(const wire::Request& request) const {
    ssize_t sent = 0;
    do sent = ::send(gpu_, &request, sizeof request, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == sizeof request ? CUDA_SUCCESS : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

bool Connection::lost() const {
    pollfd state{gpu_, 0, 0};
    return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLERR)) != 0;
}

int Connection::open_node() const {
    return ::open((directory_ + "/" + wire::kOpenedFile).c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace emulator::cuda
