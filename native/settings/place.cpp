#include "settings/place.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "core/guest.hpp"
#include "protocol/environment.autogen.hpp"

namespace runlist::settings {
namespace {

constexpr long kPrivate = 0700;

// A directory below `parent` (a descriptor, which is closed) that is ours, made if it is missing. Negative when it is
// not to be had.
long enter(long parent, const char* name) {
    const long made = call(SYS_mkdirat, parent, word(name), kPrivate);
    const long opened = call(SYS_openat, parent, word(name), long{O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC}, 0L);
    call(SYS_close, parent);
    if (opened < 0) return opened;
    struct statx found{};
    const bool ours =
        call(SYS_statx, opened, word(""), long{AT_EMPTY_PATH}, long{STATX_BASIC_STATS}, word(&found)) == 0 &&
        found.stx_uid == ::geteuid() && (found.stx_mode & (S_IWGRP | S_IWOTH)) == 0;
    if (ours && (made != 0 || call(SYS_fchmod, opened, kPrivate) == 0)) return opened;
    call(SYS_close, opened);
    return -EPERM;
}

bool make(const char* parent, const char* name) {
    long directory = call(SYS_openat, long{AT_FDCWD}, word(parent), long{O_RDONLY | O_DIRECTORY | O_CLOEXEC}, 0L);
    for (const char* part : {name, names::kRegionsFolder}) {
        if (directory >= 0) directory = enter(directory, part);
    }
    if (directory < 0) return false;
    call(SYS_close, directory);
    return true;
}

}  // namespace

Path& Path::add(const char* more) {
    for (; *more != '\0' && length + 1 < kPathBytes; ++more) text[length++] = *more;
    text[length] = '\0';
    fits = fits && *more == '\0';
    return *this;
}

Path& Path::add(std::uint64_t number) {
    char digits[24];
    std::size_t first = sizeof(digits) - 1;
    digits[first] = '\0';
    do {
        digits[--first] = static_cast<char>('0' + number % 10);
        number /= 10;
    } while (number != 0);
    return add(digits + first);
}

bool make_place(const char* runtime_directory, Path& path) {
    const std::uint64_t user = ::geteuid();
    if (runtime_directory != nullptr && runtime_directory[0] == '/' && make(runtime_directory, names::kOwnFolder)) {
        return path.add(runtime_directory).add("/").add(names::kOwnFolder).add("/").add(names::kRegionsFolder).fits;
    }
    Path own;
    own.add(names::kTemporaryPrefix).add(user);
    return make(names::kTemporaryFolder, own.text) &&
           path.add(names::kTemporaryFolder).add("/").add(own.text).add("/").add(names::kRegionsFolder).fits;
}

}  // namespace runlist::settings
