#include "core/say.hpp"

#include <poll.h>
#include <signal.h>

#include <atomic>

#include "core/guest.hpp"

namespace runlist {
namespace {

constexpr int kErrorStream = 2;
constexpr std::size_t kQuotedLength = 80;
constexpr std::size_t kKernelSetBytes = 8;  // of a signal set, as the kernel has it

constinit std::atomic<int> said_level{static_cast<int>(Level::kWarning)};

bool is_printable(char character) { return character >= ' ' && character <= '~'; }

// Keeps the signals away that a write to a closed pipe or to another job's terminal raises.
class Quiet {
  public:
    Quiet() {
        ::sigemptyset(&kept_away_);
        ::sigaddset(&kept_away_, SIGPIPE);
        ::sigaddset(&kept_away_, SIGTTOU);
        already_ = pending();
        change(SIG_BLOCK, &kept_away_, &before_);
    }

    ~Quiet() {
        if (!already_ && pending()) {
            sigset_t pipe{};
            ::sigaddset(&pipe, SIGPIPE);
            const timespec at_once{};
            call(SYS_rt_sigtimedwait, &pipe, nullptr, &at_once, kKernelSetBytes);
        }
        change(SIG_SETMASK, &before_, nullptr);
    }

    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;

  private:
    static bool pending() {
        sigset_t waiting{};
        call(SYS_rt_sigpending, &waiting, kKernelSetBytes);
        return ::sigismember(&waiting, SIGPIPE) == 1;
    }

    static void change(long how, const sigset_t* set, sigset_t* before) {
        call(SYS_rt_sigprocmask, how, set, before, kKernelSetBytes);
    }

    sigset_t kept_away_{};
    sigset_t before_{};
    bool already_;
};

}  // namespace

Line& Line::add(Quoted quoted) {
    add('"');
    std::size_t count = 0;
    for (; quoted.text[count] != '\0' && count < kQuotedLength; ++count) {
        add(is_printable(quoted.text[count]) ? quoted.text[count] : '?');
    }
    if (quoted.text[count] != '\0') add("...");
    add('"');
    return *this;
}

void Line::write() {
    text[length] = '\n';
    pollfd stream{.fd = kErrorStream, .events = POLLOUT, .revents = 0};
    const timespec at_once{};
    const long ready = call(SYS_ppoll, &stream, 1L, &at_once, nullptr, 0L);
    if (ready != 1 || (stream.revents & POLLOUT) == 0) return;
    const Quiet quiet;
    call(SYS_write, kErrorStream, text, static_cast<long>(length + 1));
}

void set_say_level(int level) { said_level.store(level, std::memory_order_relaxed); }

bool is_said(Level level) { return static_cast<int>(level) <= said_level.load(std::memory_order_relaxed); }

}  // namespace runlist
