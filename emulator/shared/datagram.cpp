#include "shared/datagram.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

namespace emulator {

std::optional<sockaddr_un> socket_address(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return std::nullopt;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return address;
}

UniqueFd connect_to(const std::string& path) {
    const auto address = socket_address(path);
    UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const bool connected =
        address && fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0;
    return connected ? std::move(fd) : UniqueFd();
}

bool send_datagram(int socket, std::span<const std::byte> bytes, int fd, int flags) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))]{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control = ancillary;
        message.msg_controllen = sizeof ancillary;
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    ssize_t sent = 0;
    do sent = ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == static_cast<ssize_t>(bytes.size());
}

Datagram receive_datagram(int socket, std::span<std::byte> buffer, int flags) {
    iovec part{buffer.data(), buffer.size()};
    alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(16 * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary;
    message.msg_controllen = sizeof ancillary;
    Datagram received;
    do received.bytes = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
    while (received.bytes < 0 && errno == EINTR);
    if (received.bytes < 0) return received;
    received.truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    std::size_t descriptors = 0;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET) continue;
        if (header->cmsg_type == SCM_CREDENTIALS) std::memcpy(&received.sender, CMSG_DATA(header), sizeof(ucred));
        if (header->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
            UniqueFd owned(fd);
            if (descriptors++ == 0) received.fd = std::move(owned);
        }
    }
    if (descriptors > 1) received.fd = UniqueFd();
    return received;
}

}  // namespace emulator
