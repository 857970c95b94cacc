// What programs read from sockets and pipes with, and how connections come in: the C library's functions, called as
// they are. What came is looked at afterwards, and only where somebody wants to know.
//
// The forms with `_chk` are what programs call that were built with checks of sizes (_FORTIFY_SOURCE).
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>

#include "activity/activity.hpp"
#include "arrivals/arrivals.hpp"
#include "resolve/copies.hpp"
#include "resolve/elf.hpp"

namespace runlist::arrivals {
namespace {

// A function of a library that is preloaded behind us, or of the C library; looked for once.
template <typename Type>
struct Real {
    const char* name;
    std::atomic<void*> known{nullptr};

    Type* find() {
        void* found = known.load(std::memory_order_relaxed);
        if (found == nullptr) [[unlikely]] {
            found = resolve::next(name);
            known.store(found, std::memory_order_relaxed);
        }
        return reinterpret_cast<Type*>(found);
    }
};

constinit Real<ssize_t(int, void*, std::size_t)> real_read{"read"};
constinit Real<ssize_t(int, void*, std::size_t, std::size_t)> real_read_chk{"__read_chk"};
constinit Real<ssize_t(int, const iovec*, int)> real_readv{"readv"};
constinit Real<ssize_t(int, void*, std::size_t, int)> real_recv{"recv"};
constinit Real<ssize_t(int, void*, std::size_t, std::size_t, int)> real_recv_chk{"__recv_chk"};
constinit Real<ssize_t(int, void*, std::size_t, int, sockaddr*, socklen_t*)> real_recvfrom{"recvfrom"};
constinit Real<ssize_t(int, void*, std::size_t, std::size_t, int, sockaddr*, socklen_t*)> real_recvfrom_chk{
    "__recvfrom_chk"};
constinit Real<ssize_t(int, msghdr*, int)> real_recvmsg{"recvmsg"};
constinit Real<int(int, mmsghdr*, unsigned, int, timespec*)> real_recvmmsg{"recvmmsg"};
constinit Real<int(int, epoll_event*, int, int)> real_epoll_wait{"epoll_wait"};
constinit Real<int(int, epoll_event*, int, int, const sigset_t*)> real_epoll_pwait{"epoll_pwait"};
constinit Real<int(pollfd*, nfds_t, int)> real_poll{"poll"};
constinit Real<int(pollfd*, nfds_t, int, std::size_t)> real_poll_chk{"__poll_chk"};
constinit Real<int(int, sockaddr*, socklen_t*)> real_accept{"accept"};
constinit Real<int(int, sockaddr*, socklen_t*, int)> real_accept4{"accept4"};

// In a child of fork the dynamic linker's lock may be taken for ever, by a thread that the child does not have.
[[gnu::constructor]] void find_real_ones() {
    real_read.find();
    real_read_chk.find();
    real_readv.find();
    real_recv.find();
    real_recv_chk.find();
    real_recvfrom.find();
    real_recvfrom_chk.find();
    real_recvmsg.find();
    real_recvmmsg.find();
    real_epoll_wait.find();
    real_epoll_pwait.find();
    real_poll.find();
    real_poll_chk.find();
    real_accept.find();
    real_accept4.find();
}

// What is only looked at, what is no message, and what may not lie where it was to be put.
constexpr int kNoMessage = MSG_PEEK | MSG_ERRQUEUE | MSG_TRUNC;

// Calls the real function, and `look` at what it gave where somebody wants to know. Who wants to may have changed while
// it waited. What the driver reads itself, as a client of MPS does and on an emulated GPU, is no request, and it may
// hold its locks meanwhile. Where nobody ever wants to know, it is a jump.
template <typename Type, typename Look, typename... Arguments>
[[gnu::always_inline]] inline auto call_watched(Real<Type>& real, const Look& look, Arguments... arguments)
    -> decltype(real.find()(arguments...)) {
    Type* function = real.find();
    if (function == nullptr) [[unlikely]] {
        errno = ENOSYS;
        return -1;
    }
    activity::Own* own = activity::telling();
    if (own == nullptr) [[likely]]
        return function(arguments...);
    const auto result = function(arguments...);
    if (result >= 0 && own->attends() && !resolve::is_in_copy(__builtin_return_address(0))) [[unlikely]]
        look(*own, result);
    return result;
}

template <typename Type, typename... Arguments>
[[gnu::always_inline]] inline ssize_t read_into(Real<Type>& real, int flags, int fd, void* bytes,
                                                Arguments... arguments) {
    const auto look = [=](activity::Own& own, ssize_t got) {
        if ((flags & kNoMessage) == 0) came(own, fd, bytes, static_cast<std::size_t>(got));
    };
    return call_watched(real, look, fd, bytes, arguments...);
}

// As if they had been read one after another: some programs have the beginning of a message put into a place of its
// own.
void came_in_pieces(activity::Own& own, int fd, const iovec* pieces, std::size_t count, ssize_t got) {
    constexpr std::size_t kPieces = 2;
    auto left = static_cast<std::size_t>(got);
    for (std::size_t at = 0; pieces != nullptr && at < std::min(count, kPieces) && left != 0; ++at) {
        const std::size_t here = std::min(pieces[at].iov_len, left);
        came(own, fd, pieces[at].iov_base, here);
        left -= here;
    }
}

// Of many that can be read the first ones are looked at, until there is something to be known.
constexpr int kReady = 16;

// What comes along with an event is the descriptor in most programs. Where it is something else, as a pointer, that is
// hardly ever the number of one.
void look_at_events(activity::Own& own, const epoll_event* events, int count) {
    for (int at = 0; at < std::min(count, kReady); ++at) {
        if ((events[at].events & EPOLLIN) != 0 && readable(own, events[at].data.fd)) return;
    }
}

void look_at_polled(activity::Own& own, const pollfd* polled, nfds_t count) {
    int ready = 0;
    for (nfds_t at = 0; at < count && ready < kReady; ++at) {
        if ((polled[at].revents & POLLIN) == 0) continue;
        ++ready;
        if (readable(own, polled[at].fd)) return;
    }
}

void came_in(activity::Own& own, int made) {
    accepted(made);
    readable(own, made);
}

}  // namespace
}  // namespace runlist::arrivals

using namespace runlist::arrivals;

// Under names of our own, as headers may have functions of those of the C library already.
#define HOOK [[gnu::used, gnu::visibility("default")]]
extern "C" {
HOOK ssize_t hooked_read(int fd, void* bytes, std::size_t size) __asm__("read");
HOOK ssize_t hooked_read_chk(int fd, void* bytes, std::size_t size, std::size_t room) __asm__("__read_chk");
HOOK ssize_t hooked_readv(int fd, const iovec* pieces, int count) __asm__("readv");
HOOK ssize_t hooked_recv(int fd, void* bytes, std::size_t size, int flags) __asm__("recv");
HOOK ssize_t hooked_recv_chk(int fd, void* bytes, std::size_t size, std::size_t room, int flags) __asm__("__recv_chk");
HOOK ssize_t hooked_recvfrom(int fd, void* bytes, std::size_t size, int flags, sockaddr* from,
                             socklen_t* length) __asm__("recvfrom");
HOOK ssize_t hooked_recvfrom_chk(int fd, void* bytes, std::size_t size, std::size_t room, int flags, sockaddr* from,
                                 socklen_t* length) __asm__("__recvfrom_chk");
HOOK ssize_t hooked_recvmsg(int fd, msghdr* message, int flags) __asm__("recvmsg");
HOOK int hooked_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) __asm__("recvmmsg");
HOOK int hooked_epoll_wait(int fd, epoll_event* events, int most, int timeout) __asm__("epoll_wait");
HOOK int hooked_epoll_pwait(int fd, epoll_event* events, int most, int timeout,
                            const sigset_t* blocked) __asm__("epoll_pwait");
HOOK int hooked_poll(pollfd* polled, nfds_t count, int timeout) __asm__("poll");
HOOK int hooked_poll_chk(pollfd* polled, nfds_t count, int timeout, std::size_t room) __asm__("__poll_chk");
HOOK int hooked_accept(int fd, sockaddr* peer, socklen_t* length) __asm__("accept");
HOOK int hooked_accept4(int fd, sockaddr* peer, socklen_t* length, int flags) __asm__("accept4");

ssize_t hooked_read(int fd, void* bytes, std::size_t size) { return read_into(real_read, 0, fd, bytes, size); }

ssize_t hooked_read_chk(int fd, void* bytes, std::size_t size, std::size_t room) {
    return read_into(real_read_chk, 0, fd, bytes, size, room);
}

ssize_t hooked_recv(int fd, void* bytes, std::size_t size, int flags) {
    return read_into(real_recv, flags, fd, bytes, size, flags);
}

ssize_t hooked_recv_chk(int fd, void* bytes, std::size_t size, std::size_t room, int flags) {
    return read_into(real_recv_chk, flags, fd, bytes, size, room, flags);
}

ssize_t hooked_recvfrom(int fd, void* bytes, std::size_t size, int flags, sockaddr* from, socklen_t* length) {
    return read_into(real_recvfrom, flags, fd, bytes, size, flags, from, length);
}

ssize_t hooked_recvfrom_chk(int fd, void* bytes, std::size_t size, std::size_t room, int flags, sockaddr* from,
                            socklen_t* length) {
    return read_into(real_recvfrom_chk, flags, fd, bytes, size, room, flags, from, length);
}

ssize_t hooked_readv(int fd, const iovec* pieces, int count) {
    const auto look = [=](runlist::activity::Own& own, ssize_t got) {
        came_in_pieces(own, fd, pieces, static_cast<std::size_t>(std::max(count, 0)), got);
    };
    return call_watched(real_readv, look, fd, pieces, count);
}

ssize_t hooked_recvmsg(int fd, msghdr* message, int flags) {
    const auto look = [=](runlist::activity::Own& own, ssize_t got) {
        if ((flags & kNoMessage) == 0) came_in_pieces(own, fd, message->msg_iov, message->msg_iovlen, got);
    };
    return call_watched(real_recvmsg, look, fd, message, flags);
}

int hooked_recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
    const auto look = [=](runlist::activity::Own& own, int got) {
        const msghdr& first = messages->msg_hdr;
        if (got > 0 && (flags & kNoMessage) == 0)
            came_in_pieces(own, fd, first.msg_iov, first.msg_iovlen, messages->msg_len);
    };
    return call_watched(real_recvmmsg, look, fd, messages, count, flags, timeout);
}

int hooked_epoll_wait(int fd, epoll_event* events, int most, int timeout) {
    const auto look = [=](runlist::activity::Own& own, int ready) { look_at_events(own, events, ready); };
    return call_watched(real_epoll_wait, look, fd, events, most, timeout);
}

int hooked_epoll_pwait(int fd, epoll_event* events, int most, int timeout, const sigset_t* blocked) {
    const auto look = [=](runlist::activity::Own& own, int ready) { look_at_events(own, events, ready); };
    return call_watched(real_epoll_pwait, look, fd, events, most, timeout, blocked);
}

int hooked_poll(pollfd* polled, nfds_t count, int timeout) {
    const auto look = [=](runlist::activity::Own& own, int ready) {
        if (ready > 0) look_at_polled(own, polled, count);
    };
    return call_watched(real_poll, look, polled, count, timeout);
}

int hooked_poll_chk(pollfd* polled, nfds_t count, int timeout, std::size_t room) {
    const auto look = [=](runlist::activity::Own& own, int ready) {
        if (ready > 0) look_at_polled(own, polled, count);
    };
    return call_watched(real_poll_chk, look, polled, count, timeout, room);
}

int hooked_accept(int fd, sockaddr* peer, socklen_t* length) {
    return call_watched(real_accept, came_in, fd, peer, length);
}

int hooked_accept4(int fd, sockaddr* peer, socklen_t* length, int flags) {
    return call_watched(real_accept4, came_in, fd, peer, length, flags);
}
}
