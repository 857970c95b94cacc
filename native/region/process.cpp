#include "region/process.hpp"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/text.hpp"

namespace runlist::region {
namespace {

// What /proc/PID/stat says, see proc_pid_stat(5).
struct Status {
    std::int32_t pid;
    char state;
    std::uint64_t threads;
    std::uint64_t start_time;
};

constexpr int kState = 3;
constexpr int kThreads = 20;
constexpr int kStartTime = 22;

// The beginning of a file, as a text. False for an empty one, and for none.
template <std::size_t room>
bool read_file(const char* path, char (&text)[room]) {
    const long file = call(SYS_openat, long{AT_FDCWD}, word(path), long{O_RDONLY | O_CLOEXEC});
    if (file < 0) return false;
    const long size = call(SYS_read, file, word(text), long{room - 1});
    call(SYS_close, file);
    text[std::max(size, 0L)] = '\0';
    return size > 0;
}

std::optional<Status> read_status(const char* path) {
    char text[1024];
    if (!read_file(path, text)) return std::nullopt;
    const char* at = std::strrchr(text, ')');  // the name in front of it may contain anything
    if (at == nullptr) return std::nullopt;
    std::uint64_t pid = 0;
    read_number(text, pid);
    Status status{.pid = static_cast<std::int32_t>(pid), .state = 0, .threads = 0, .start_time = 0};
    for (int field = kState; field <= kStartTime; ++field) {
        at = std::strchr(at, ' ');
        if (at == nullptr) return std::nullopt;
        ++at;
        if (field == kState) status.state = *at;
        if (field == kThreads) read_number(at, status.threads);
        if (field == kStartTime) read_number(at, status.start_time);
    }
    return status;
}

std::optional<Status> read_status(std::int32_t pid) {
    Text<32> path;
    path.add("/proc/").add(pid).add("/stat");
    return read_status(path.text);
}

// In ticks: how far the boot-time clock of our time namespace is ahead, which /proc adds to each start time.
std::uint64_t time_shift() {
    char text[256];
    if (!read_file("/proc/self/timens_offsets", text)) return 0;
    const char* at = std::strstr(text, "boottime");
    at = at != nullptr ? at + std::strcspn(at, "-0123456789") : "";
    const bool behind = *at == '-';
    std::uint64_t seconds = 0;
    std::uint64_t nanoseconds = 0;
    const char* rest = read_number(at + behind, seconds);
    if (rest == nullptr) return 0;
    read_number(rest + std::strspn(rest, " "), nanoseconds);
    const std::uint64_t ticks = ::getauxval(AT_CLKTCK);
    return (behind ? 0 - seconds : seconds) * ticks + nanoseconds * ticks / 1'000'000'000;
}

std::uint64_t mixed(std::uint64_t number) {
    number = (number ^ number >> 31) * 0x7FB5'D329'728E'A185;
    number = (number ^ number >> 27) * 0x81DA'DEF4'BC2D'D44D;
    return number ^ number >> 33;
}

// The kernel gives each program 16 random bytes. Of them only 32 mixed bits go into a file: the C library protects its
// stack with the same bytes.
std::uint64_t own_image() {
    const auto* random = reinterpret_cast<const void*>(::getauxval(AT_RANDOM));
    if (random == nullptr) return 1;
    std::uint64_t words[2];
    std::memcpy(words, random, sizeof(words));
    return (mixed(words[0]) + mixed(mixed(words[1]))) >> 32 | 1;
}

}  // namespace

Self Self::look() {
    Self self{.pid = own_pid(), .image = own_image()};
    if (const auto status = read_status("/proc/self/stat"); status && status->pid == self.pid) {
        self.shift = time_shift();
        self.start_time = status->start_time - self.shift;
        self.sees_processes = true;
    }
    struct stat names{};
    if (call(SYS_newfstatat, long{AT_FDCWD}, word("/proc/self/ns/pid"), word(&names), 0L) == 0) {
        self.pid_namespace = names.st_ino;
    }
    return self;
}

bool ended(const Self& self, std::int32_t pid, std::uint64_t start_time) {
    if (pid <= 0) return true;
    if (self.sees_processes) {
        if (const auto status = read_status(pid)) {
            if (start_time != 0 && status->start_time - self.shift != start_time) return true;
            return (status->state == 'Z' || status->state == 'X') && status->threads <= 1;
        }
    }
    return call(SYS_kill, long{pid}, 0L) == -ESRCH;
}

}  // namespace runlist::region
