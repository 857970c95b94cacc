// Children of a check, and what goes between it and them.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "checks/check.hpp"

namespace runlist::checks {

// Two ways between a process and its children. Neither waits for one that has failed: what does not hold is to be seen
// at once, and a child that stayed would keep our output open.
struct Pipes {
    int up[2];
    int down[2];
    Pipes() { REQUIRE(::pipe(up) == 0 && ::pipe(down) == 0); }
    ~Pipes() {
        for (const int end : {up[0], up[1], down[0], down[1]}) ::close(end);
    }
    void say(std::int64_t number) const { REQUIRE(::write(up[1], &number, sizeof(number)) == sizeof(number)); }
    std::int64_t hear() const {
        std::int64_t number = -1;
        pollfd ready{.fd = up[0], .events = POLLIN, .revents = 0};
        while (::poll(&ready, 1, 50) == 0) {
            siginfo_t ended{};
            const bool any = ::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0;
            REQUIRE(!any || ended.si_status == 0);
        }
        REQUIRE(::read(up[0], &number, sizeof(number)) == sizeof(number));
        return number;
    }
    void go_on() const { REQUIRE(::write(down[1], "", 1) == 1); }
    // In each child: its wait ends with those who could let it go on.
    void stay_below() const { ::close(down[1]); }
    void wait() const {
        char byte = 0;
        const ssize_t got = ::read(down[0], &byte, 1);
        if (got == 0) ::_exit(7);
        REQUIRE(got == 1);
    }
};

inline void expect_end(pid_t child) {
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child && status == 0);
}

// A child that does this, says a number, and stays until it is to go on.
template <typename Act>
pid_t child_that(const Pipes& pipes, const Act& act) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child != 0) return child;
    pipes.stay_below();
    pipes.say(act());
    pipes.wait();
    ::_exit(0);
}

// As that, as the first process of a pid namespace of its own, or of a time namespace whose clocks are a day ahead,
// too.
template <typename Act>
pid_t contained_child_that(const Pipes& pipes, bool later, const Act& act, int kinds = CLONE_NEWPID) {
    const pid_t outer = ::fork();
    REQUIRE(outer >= 0);
    if (outer != 0) return outer;
    pipes.stay_below();
    if (::unshare(kinds | (later ? 0x80 : 0)) != 0) {  // CLONE_NEWTIME
        pipes.say(-errno);
        ::_exit(0);
    }
    if (later) {
        const int offsets = ::open("/proc/self/timens_offsets", O_WRONLY);
        constexpr char kDay[] = "boottime 86400 0\n";
        if (offsets < 0 || ::write(offsets, kDay, sizeof(kDay) - 1) < 0) {
            pipes.say(-errno);
            ::_exit(0);
        }
        ::close(offsets);
    }
    const pid_t child = child_that(pipes, act);
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
}

}  // namespace runlist::checks
