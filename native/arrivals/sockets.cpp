#include "arrivals/sockets.hpp"

#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>

#include "core/guest.hpp"
#include "core/relaxed.hpp"

namespace runlist::arrivals {
namespace {

constexpr std::uint16_t kFirstOwn = 32768;  // the kernel gives ports from here on to those who asked for none

union Address {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
    sockaddr_un local;
};

constexpr Door kUnnamed = 1;  // all unnamed sockets of pairs

Door door_of(std::uint32_t one, std::uint32_t other, bool of_ours = false) {
    const std::uint64_t both = (std::uint64_t{one} << 32 | other) * 0x9E37'79B9'7F4A'7C15;
    return (static_cast<Door>(both >> 32) & ~Door{1}) | 2 | (of_ours ? 1 : 0);  // neither 0 nor kUnnamed
}

std::uint16_t port_of(const Address& address) {
    if (address.any.sa_family == AF_INET) return __builtin_bswap16(address.v4.sin_port);
    return address.any.sa_family == AF_INET6 ? __builtin_bswap16(address.v6.sin6_port) : 0;
}

bool get(int fd, int option, int& value) {
    socklen_t size = sizeof(value);
    return call(SYS_getsockopt, static_cast<long>(fd), long{SOL_SOCKET}, static_cast<long>(option), &value, &size) == 0;
}

bool ask(long number, int fd, Address& address, socklen_t& length) {
    length = sizeof(address);
    return call(number, static_cast<long>(fd), &address, &length) == 0;
}

// What comes by the standard descriptors is for a person, or a log.
Door pipe(int fd) {
    struct stat about{};
    if (fd <= STDERR_FILENO || call(SYS_fstat, static_cast<long>(fd), &about) != 0 || !S_ISFIFO(about.st_mode))
        return 0;
    return door_of(S_IFIFO, static_cast<std::uint32_t>(about.st_ino ^ about.st_ino >> 32), true);
}

Door look(int fd, bool accepted) {
    Address own{};
    socklen_t length = 0;
    if (!ask(SYS_getsockname, fd, own, length)) return pipe(fd);
    const auto family = own.any.sa_family;
    if (family == AF_UNIX) {
        int type = 0;
        if (!get(fd, SO_TYPE, type) || type == SOCK_DGRAM) return 0;  // as what a daemon answers
        const auto path_length = static_cast<std::size_t>(length) - offsetof(sockaddr_un, sun_path);
        if (length <= offsetof(sockaddr_un, sun_path)) return kUnnamed;
        std::uint32_t sum = AF_UNIX;
        for (std::size_t at = 0; at < path_length && at < sizeof(own.local.sun_path); ++at) {
            sum = sum * 31 + static_cast<unsigned char>(own.local.sun_path[at]);
        }
        return door_of(AF_UNIX, sum);
    }
    if (family != AF_INET && family != AF_INET6) return 0;
    std::uint16_t port = port_of(own);
    // Of a connection that we did not see come in, the end that has a port of its own choice is the one that is known.
    if (!accepted && port >= kFirstOwn) {
        Address peer{};
        port = ask(SYS_getpeername, fd, peer, length) && port_of(peer) < kFirstOwn ? port_of(peer) : 0;
    }
    return door_of(AF_INET, port);
}

constexpr std::uint64_t kSecondMask = 0x1FF;
constexpr Door kNone = ~Door{0};

std::uint64_t tag_of(int fd) { return (static_cast<std::uint64_t>(fd) + 1) & ((1u << 22) - 1); }

}  // namespace

// A word of the table. The door of what does not count is kNone; 0 means that nobody has looked yet.
Door Sockets::door(int fd, std::int64_t now_ns) {
    if (fd < 0) return 0;
    std::atomic<std::uint64_t>& place = known_[static_cast<unsigned>(fd) % kRoom];
    const std::uint64_t known = place.load(kRelaxed);
    const std::uint64_t second = static_cast<std::uint64_t>(now_ns >> 30) & kSecondMask;
    const bool same = known >> 42 == tag_of(fd);
    const bool accepted = same && (known >> 32 & 1) != 0;
    Door door = static_cast<Door>(known);
    if (!same || door == 0 || (known >> 33 & kSecondMask) != second) {
        door = look(fd, accepted);
        if (door == 0) door = kNone;
        place.store(tag_of(fd) << 42 | second << 33 | std::uint64_t{accepted} << 32 | door, kRelaxed);
    }
    return door == kNone ? 0 : door;
}

void Sockets::accepted(int fd) {
    if (fd < 0) return;
    known_[static_cast<unsigned>(fd) % kRoom].store(tag_of(fd) << 42 | std::uint64_t{1} << 32, kRelaxed);
}

// A stream gives its bytes before its error, and keeps that; a socket for datagrams would give us the error. Who has
// set an offset for peeking has it moved by each peek.
std::size_t Sockets::peek(int fd, unsigned char* bytes, std::size_t room) {
    int there = 0, type = 0, offset = -1;
    if (call(SYS_ioctl, static_cast<long>(fd), long{FIONREAD}, &there) != 0 || there <= 0) return 0;
    if (!get(fd, SO_TYPE, type) || type != SOCK_STREAM || (get(fd, SO_PEEK_OFF, offset) && offset >= 0)) return 0;
    const long got = call(SYS_recvfrom, static_cast<long>(fd), bytes, static_cast<long>(room),
                          long{MSG_PEEK | MSG_DONTWAIT}, nullptr, nullptr);
    const auto least = static_cast<long>(room) < there ? static_cast<long>(room) : there;
    return got < least ? 0 : static_cast<std::size_t>(there);  // somebody else reads it
}

}  // namespace runlist::arrivals
