// Manners of code that runs inside other people's programs.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace runlist {

inline long word(const void* pointer) { return reinterpret_cast<long>(pointer); }
inline long word(long value) { return value; }

// The kernel's answer to a system call. The C library's syscall() may be another one's: torsocks puts one before it
// that denies what it does not know.
inline long ask_kernel(long number, long first = 0, long second = 0, long third = 0, long fourth = 0, long fifth = 0,
                       long sixth = 0) {
#if defined(__x86_64__)
    register long in_r10 __asm__("r10") = fourth;
    register long in_r8 __asm__("r8") = fifth;
    register long in_r9 __asm__("r9") = sixth;
    long result = number;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(first), "S"(second), "d"(third), "r"(in_r10), "r"(in_r8), "r"(in_r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long in_x8 __asm__("x8") = number;
    register long in_x0 __asm__("x0") = first;
    register long in_x1 __asm__("x1") = second;
    register long in_x2 __asm__("x2") = third;
    register long in_x3 __asm__("x3") = fourth;
    register long in_x4 __asm__("x4") = fifth;
    register long in_x5 __asm__("x5") = sixth;
    __asm__ volatile("svc #0"
                     : "+r"(in_x0)
                     : "r"(in_x8), "r"(in_x1), "r"(in_x2), "r"(in_x3), "r"(in_x4), "r"(in_x5)
                     : "memory");
    return in_x0;
#else
#error "not built for this processor: make its system calls here"
#endif
}

// A system call that leaves errno alone and returns the negative of an errno value when it fails. Unlike the C
// library's functions it is no cancellation point, so that no thread ends in the middle of what we do.
template <typename... Arguments>
long call(long number, Arguments... arguments) {
    return ask_kernel(number, word(arguments)...);
}

// The machine's clock, in user space. In programs of others preload.cpp has it be the C library's own: one that is put
// before it may stand still, as faketime's.
using ClockFunction = int(clockid_t, timespec*) noexcept;
inline constinit std::atomic<ClockFunction*> machine_clock{&::clock_gettime};

inline std::int64_t monotonic_ns() {
    timespec now{};
    machine_clock.load(std::memory_order_relaxed)(CLOCK_MONOTONIC, &now);  // it cannot fail
    return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

inline timespec timespec_of(std::int64_t nanoseconds) {
    return {.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
}

inline void pause_ns(std::int64_t nanoseconds) {
    const timespec length = timespec_of(nanoseconds);
    call(SYS_nanosleep, &length, nullptr);
}

// A set of signals, as the kernel has it.
template <typename... Numbers>
constexpr std::uint64_t signal_set(Numbers... numbers) {
    return ((std::uint64_t{1} << (numbers - 1)) | ...);
}

// Faults of the thread itself. Where they are blocked the kernel ends the process, though it has handlers for them.
constexpr std::uint64_t kFaults = signal_set(SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGSYS);

// The C library's own, for cancelling and setuid.
constexpr std::uint64_t kOfTheCLibrary = signal_set(32, 33);

// Whether a file may be as long: to try where it may not would end the program with SIGXFSZ.
inline bool may_be_as_long(std::uint64_t bytes) {
    rlimit64 limit{};
    return call(SYS_prlimit64, 0L, long{RLIMIT_FSIZE}, nullptr, &limit) != 0 || limit.rlim_cur >= bytes;
}

// From here on are no numbers that programs give to descriptors themselves: 3 for a status, 10 for a shell's script,
// 200 for a lock. bash takes what it finds open there, to be closed on exec, for its own, and puts it back. The second
// one is for who may not have so many.
constexpr long kOwnDescriptors[] = {961, 187};

// A copy in the stead of a new descriptor, where no program expects one of its own; at least behind the standard
// streams, one of which it may have closed. The negative of an errno value when there is none.
inline long out_of_the_way(long descriptor) {
    if (descriptor < 0) return descriptor;
    long copy = -EMFILE;
    for (const long least : kOwnDescriptors) {
        if (copy < 0) copy = call(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, least);
    }
    if (copy < 0 && descriptor > STDERR_FILENO) return descriptor;  // it may have fewer still
    if (copy < 0) copy = call(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    call(SYS_close, descriptor);
    return copy;
}

}  // namespace runlist
