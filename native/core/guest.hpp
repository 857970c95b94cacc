// Manners of code that runs inside other people's programs.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace runlist {

inline long word(const void* pointer) { return reinterpret_cast<long>(pointer); }
inline long word(long value) { return value; }

// A system call that leaves errno alone and returns the negative of an errno value when it fails. Unlike the C
// library's functions it is no cancellation point, so that no thread ends in the middle of what we do.
template <typename... Arguments>
long call(long number, Arguments... arguments) {
    const int saved = errno;
    const long result = ::syscall(number, word(arguments)...);
    const int error = errno;
    errno = saved;
    return result == -1 ? -error : result;
}

inline std::int64_t monotonic_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);  // in user space, and it cannot fail
    return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

inline timespec timespec_of(std::int64_t nanoseconds) {
    return {.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
}

inline void pause_ns(std::int64_t nanoseconds) {
    const timespec length = timespec_of(nanoseconds);
    call(SYS_nanosleep, &length, nullptr);
}

// Whether a file may be as long: to try where it may not would end the program with SIGXFSZ.
inline bool may_be_as_long(std::uint64_t bytes) {
    rlimit64 limit{};
    return call(SYS_prlimit64, 0L, long{RLIMIT_FSIZE}, nullptr, &limit) != 0 || limit.rlim_cur >= bytes;
}

// Below this are the numbers that programs give to descriptors themselves: 3 for a status, 10 for a shell's script.
constexpr long kOwnDescriptors = 200;

// A copy in the stead of a new descriptor, where no program expects one of its own; at least behind the standard
// streams, one of which it may have closed. The negative of an errno value when there is none.
inline long out_of_the_way(long descriptor) {
    if (descriptor < 0) return descriptor;
    long copy = call(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, kOwnDescriptors);
    if (copy < 0 && descriptor > STDERR_FILENO) return descriptor;  // it may not have so many
    if (copy < 0) copy = call(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    call(SYS_close, descriptor);
    return copy;
}

}  // namespace runlist
