// Which descriptors are sockets and pipes of those who ask for something, and where they came in.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace runlist::arrivals {

// What tells where a message came in; 0: at nothing that counts.
using Door = std::uint32_t;

// Whether it is a pipe, or an unnamed socket of a pair: by these the threads of a program wake one another, too.
constexpr bool is_private(Door door) { return (door & 1) != 0; }

// A fixed table. What it says of a descriptor is believed for a second or two, as descriptors are closed and made anew
// without our hearing of it.
class Sockets {
  public:
    Door door(int fd, std::int64_t now_ns);

    // It came in just now, at a listening socket.
    void accepted(int fd);

    // Of a connection: copies the beginning of what is there to be read, and returns how much that is. Nothing changes
    // by it, also no error that its reader is to see. 0 where that cannot be done.
    static std::size_t peek(int fd, unsigned char* bytes, std::size_t room);

  private:
    static constexpr unsigned kRoom = 4096;
    std::array<std::atomic<std::uint64_t>, kRoom> known_;  // fd:22 second:9 accepted:1 door:32; 0: nothing is known
};

}  // namespace runlist::arrivals
