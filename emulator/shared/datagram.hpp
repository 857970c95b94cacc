// Datagrams between programs and the device, with a descriptor that may travel along.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "shared/unique_fd.hpp"

namespace emulator {

// Nothing when the path is too long for a socket.
std::optional<sockaddr_un> socket_address(const std::string& path);
// Connected to who listens at the path; none when nobody does.
UniqueFd connect_to(const std::string& path);

// `fd` -1 sends none. False when not all of it went.
bool send_datagram(int socket, std::span<const std::byte> bytes, int fd, int flags);

struct Datagram {
    ssize_t bytes = -1;  // 0 when the other side hung up, negative when there is nothing
    UniqueFd fd;         // if exactly one came
    ucred sender{};      // on a socket with SO_PASSCRED
    bool truncated = false;
};

Datagram receive_datagram(int socket, std::span<std::byte> buffer, int flags);

}  // namespace emulator
