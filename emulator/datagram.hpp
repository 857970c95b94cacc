// Datagrams between programs and the device, with a descriptor that may travel along.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <span>

#include "unique_fd.hpp"

namespace emulator {

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
