#include "actuator/steps.hpp"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

namespace runlist::actuator {
namespace {

constexpr timeval kPatience{.tv_sec = 10, .tv_usec = 0};

std::uint32_t number_at(std::span<const std::byte> bytes, std::size_t at) {
    std::uint32_t number = 0;
    std::memcpy(&number, bytes.data() + at, sizeof number);
    return number;
}

std::uint32_t last_error() { return static_cast<std::uint32_t>(errno); }

bool send_with(int to, std::span<const std::byte> bytes, int descriptor) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))]{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary;
    message.msg_controllen = sizeof ancillary;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    return ::sendmsg(to, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// The answer is in the place of the question. Each has a socket of its own: a late answer meets nobody.
Outcome exchange(int file, const Step& head, std::vector<std::byte>& bytes) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return {.error = last_error()};
    Descriptor ours(pair[0]);
    {
        const Descriptor theirs(pair[1]);  // ours is gone by the time that we listen: the driver's end is heard of
        ::setsockopt(ours.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
        if (!send_with(file, bytes, theirs.get())) return {.error = last_error()};
    }
    bytes.resize(std::max(bytes.size(), std::size_t{head.status_at} + sizeof(std::uint32_t)));
    const ssize_t size = ::recv(ours.get(), bytes.data(), bytes.size(), 0);
    if (size < 0) return {.error = last_error()};
    const auto holds = [&](std::size_t at) { return static_cast<std::size_t>(size) >= at + sizeof(std::uint32_t); };
    if (!holds(head.request)) return {.error = EIO};
    if (const std::uint32_t error = number_at(bytes, head.request); error != 0) return {.error = error};
    return holds(head.status_at) ? Outcome{.status = number_at(bytes, head.status_at)} : Outcome{.error = EPROTO};
}

}  // namespace

bool Prepared::sound() const {
    const auto within = [](std::size_t at, std::size_t size, std::size_t whole) {
        return at <= whole && size <= whole - at;
    };
    if (head.form == Form::kDatagram) return within(head.status_at, 4, kMaxBytes) && within(head.request, 4, kMaxBytes);
    return head.form == Form::kIoctl && within(head.status_at, 4, head.argument_bytes) &&
           within(head.pointer_at, sizeof(void*), head.argument_bytes);
}

Outcome Prepared::send(int file) {
    if (head.form == Form::kDatagram) return exchange(file, head, bytes);
    void* params = bytes.data() + head.argument_bytes;
    std::memcpy(bytes.data() + head.pointer_at, &params, sizeof params);
    if (::ioctl(file, head.request, bytes.data()) != 0) return {.error = last_error()};
    return {.status = number_at(bytes, head.status_at)};
}

}  // namespace runlist::actuator
