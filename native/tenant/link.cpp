#include "tenant/link.hpp"

#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "core/guest.hpp"
#include "core/text.hpp"
#include "protocol/environment.autogen.hpp"

namespace runlist {
namespace {

using Path = Text<sizeof(sockaddr_un::sun_path)>;

const char* variable(const char* name) {
    const char* value = ::secure_getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
}

// Of directories that nobody named only root's and our own are taken, where nobody else can write. Elsewhere, as in
// /tmp, what is there could change between a look and the connection.
bool trusted(const Path& directory) {
    struct stat found{};
    const long result = call(SYS_newfstatat, long{AT_FDCWD}, directory.text, &found, long{AT_SYMLINK_NOFOLLOW});
    const bool ours = found.st_uid == 0 || found.st_uid == static_cast<uid_t>(call(SYS_geteuid));
    return result == 0 && ours && S_ISDIR(found.st_mode) && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

bool Link::open() {
    const auto try_in = [this](Path directory) {
        if (!directory.fits || !trusted(directory)) return false;
        const Path& path = directory.add('/').add(names::kMessagesSocket);
        return path.fits && connect({path.text, path.length});
    };
    const auto try_beside = [&try_in](const char* named) {
        const char* slash = std::strrchr(named, '/');
        if (slash == nullptr) return try_in(Path{}.add("."));
        return try_in(Path{}.add({named, static_cast<std::size_t>(std::max<std::ptrdiff_t>(slash - named, 1))}));
    };
    if (const char* named = variable(names::kMessages)) {  // a user's own, from before the daemon started anew, or ours
        const Path path = Path{}.add(named);
        return (path.fits && connect({path.text, path.length})) || try_beside(named);
    }
    if (const char* stream = variable(names::kSocket)) return try_beside(stream);
    const char* device = variable(names::kDevice);
    if (device != nullptr && std::strcmp(device, names::kEmulated) == 0) {
        const char* directory = variable(names::kEmulatedGpu);
        return directory != nullptr && try_in(Path{}.add(directory));
    }
    if (const long user = call(SYS_geteuid); user != 0) {
        const char* runtime = variable(names::kRuntimeDir);
        const Path own = runtime != nullptr
                             ? Path{}.add(runtime).add('/').add(names::kOwnFolder)
                             : Path{}.add(names::kTemporaryFolder).add('/').add(names::kTemporaryPrefix).add(user);
        if (try_in(own)) return true;
    }
    return try_in(Path{}.add(names::kSystemFolder));
}

bool Link::connect(std::string_view path) {
    fd_ = static_cast<int>(out_of_the_way(call(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0L)));
    if (fd_ < 0) return false;
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
    const sockaddr_un unnamed{.sun_family = AF_UNIX, .sun_path = {}};
    name_length_ = sizeof(name_);
    if (call(SYS_bind, fd_, &unnamed, sizeof(unnamed.sun_family)) == 0 &&
        call(SYS_getsockname, fd_, &name_, &name_length_) == 0 && call(SYS_connect, fd_, &address, length) == 0) {
        return true;
    }
    call(SYS_close, fd_);
    fd_ = -1;
    return false;
}

bool Link::is_open() const {
    sockaddr_un name{};
    socklen_t length = sizeof(name);
    return fd_ >= 0 && call(SYS_getsockname, fd_, &name, &length) == 0 && length == name_length_ &&
           std::memcmp(&name, &name_, length) == 0;
}

void Link::close() {
    if (is_open()) call(SYS_close, fd_);
    fd_ = -1;
}

int Link::send(const Record& record, std::int64_t patience_ns) const {
    for (bool waited = false;; waited = true) {
        const long sent = call(SYS_sendto, fd_, &record, sizeof(record), MSG_NOSIGNAL, nullptr, 0L);
        if (sent >= 0) return 0;
        if (sent != -EAGAIN || waited || patience_ns == 0) return static_cast<int>(sent);
        poll(POLLOUT, patience_ns);
    }
}

int Link::send(const Record& record, std::span<const int> descriptors) const {
    if (descriptors.empty() || descriptors.size() > kMaxDescriptors) return -EINVAL;
    alignas(cmsghdr) char room[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
    iovec bytes{.iov_base = const_cast<Record*>(&record), .iov_len = sizeof(record)};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
    const long sent = call(SYS_sendmsg, fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent >= 0 ? 0 : static_cast<int>(sent);
}

Answer Link::receive(std::int64_t patience_ns) const {
    if (!poll(POLLIN, patience_ns) || !is_open()) return {};
    Record answer{.kind = Kind::kHint};
    const long size = call(SYS_recvfrom, fd_, &answer, sizeof(answer), 0L, nullptr, nullptr);
    if (size != sizeof(answer) || answer.kind != Kind::kSegmentBegin) return {};
    return {answer.sequence, static_cast<Effect>(answer.effect) == Effect::kInForce ? 1u : 0u};
}

bool Link::poll(short events, std::int64_t patience_ns) const {
    pollfd waiting{.fd = fd_, .events = events, .revents = 0};
    const timespec patience = timespec_of(patience_ns);
    return call(SYS_ppoll, &waiting, 1L, &patience, nullptr, 0L) > 0;
}

}  // namespace runlist
