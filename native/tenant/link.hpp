// The way to a daemon: a datagram socket that is connected to it and that the kernel gave a name for its answers.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "tenant/record.hpp"

namespace runlist {

// What the daemon says of the segment that began with a message.
struct Answer {
    std::uint32_t sequence = 0;
    std::uint32_t in_force = 0;  // 1 where it is; no bool, so that an atomic one has no padding
};

class Link {
  public:
    // Connects to the first daemon that hears, as runlist/tenant.py does. False when none does.
    bool open();

    // Whether the descriptor is still our socket. A program may close descriptors that it does not know, and the number
    // then belongs to another file, which must get none of our bytes.
    bool is_open() const;

    void close();

    // 0, -EAGAIN when the daemon's queue has no room for so long, or another error: the daemon is gone.
    int send(const Record& record, std::int64_t patience_ns) const;

    static constexpr std::size_t kMaxDescriptors = tenant::kMaxDescriptors;

    // As send() without patience; the daemon gets copies of the descriptors, kMaxDescriptors at most. -EBADF when one
    // of them is none.
    int send(const Record& record, std::span<const int> descriptors) const;

    // The next answer, or one of sequence 0 when none came in time. Errors look like that, too.
    Answer receive(std::int64_t patience_ns) const;

  private:
    bool connect(std::string_view path);
    bool poll(short events, std::int64_t patience_ns) const;

    int fd_ = -1;
    sockaddr_un name_{};
    socklen_t name_length_ = 0;
};

}  // namespace runlist
