// Takes and gives memory under a timer whose handler does so, too, and in children of fork in the middle of it.
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <cerrno>

#include "checks/check.hpp"
#include "region/quota.hpp"

namespace {

using runlist::region::quota;

constexpr std::uint64_t kPiece = 2 << 20;
constexpr std::uint64_t kLimit = 1'000 * kPiece;
constexpr int kRounds = 20'000;
constexpr int kChildren = 20;
constexpr int kErrno = 77;
constexpr std::uint8_t kUuid[16] = {9};

volatile sig_atomic_t handled;
int device;

void take_and_give() {
    REQUIRE(quota.charge(device, kPiece));
    quota.settle(device, kPiece, kPiece, false);
    quota.refund(device, kPiece, false);
}

void on_alarm(int) {
    const int saved = errno;
    errno = kErrno;
    take_and_give();
    REQUIRE(errno == kErrno);
    errno = saved;
    handled = handled + 1;
}

void set_timer(suseconds_t microseconds) {
    const itimerval timer{{0, microseconds}, {0, microseconds}};
    REQUIRE(::setitimer(ITIMER_REAL, &timer, nullptr) == 0);
}

}  // namespace

int main() {
    const runlist::checks::Folder folder;
    const auto region = folder.region({.memory = kLimit});
    device = region.device_index(kUuid);
    quota.start(region);
    struct sigaction action{};
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART;
    REQUIRE(::sigaction(SIGALRM, &action, nullptr) == 0);
    set_timer(100);
    for (int round = 0; round < kRounds || handled < 100; ++round) take_and_give();
    for (int index = 0; index < kChildren; ++index) {
        REQUIRE(quota.charge(device, kPiece));  // under way while it forks
        const pid_t child = ::fork();
        if (child == 0) {
            take_and_give();
            REQUIRE(quota.used_by(device, ::getpid()) == 0);
            ::_exit(0);
        }
        quota.settle(device, kPiece, kPiece, true);
        int status = -1;
        REQUIRE(::waitpid(child, &status, 0) == child && status == 0);
        REQUIRE(quota.used_by(device, ::getpid()) >= kPiece);
        quota.refund(device, kPiece, true);
    }
    set_timer(0);
    REQUIRE(quota.used(device) == 0);
    std::puts("ok");
    return 0;
}
