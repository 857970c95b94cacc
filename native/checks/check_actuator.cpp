// The actuator between a daemon and a driver that are threads here: what it suspends, when, and what it undoes; files
// that are cut short, words that are disturbed, and messages that make no sense.
#include <linux/futex.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "actuator/actuator.hpp"
#include "checks/check.hpp"
#include "core/guest.hpp"

namespace {

using namespace runlist;
using namespace runlist::actuator;

constexpr std::uint64_t kFile = 2 * 4096;
constexpr std::uint64_t kAt = 4096 + 128;
constexpr std::uint32_t kOff = 1, kOn = 2;

struct Pair {
    int ends[2];
    Pair() { REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0); }
};

// Takes datagrams, notes the number in each, and answers with 0 and `status`.
class Driver {
  public:
    Driver() : thread_([this] { serve(); }) {}
    ~Driver() {
        ::shutdown(pair_.ends[0], SHUT_RDWR);
        thread_.join();
        for (const int end : pair_.ends) ::close(end);
    }
    int file() const { return ::dup(pair_.ends[1]); }
    std::vector<std::uint32_t> sent() {
        const std::lock_guard lock(mutex_);
        return sent_;
    }
    std::atomic<std::uint32_t> status{0};

  private:
    void serve() {
        for (;;) {
            std::uint32_t number = 0;
            iovec part{&number, sizeof number};
            alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int))];
            msghdr message{};
            message.msg_iov = &part;
            message.msg_iovlen = 1;
            message.msg_control = ancillary;
            message.msg_controllen = sizeof ancillary;
            if (::recvmsg(pair_.ends[0], &message, MSG_CMSG_CLOEXEC) <= 0) return;
            int answer = -1;
            std::memcpy(&answer, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof answer);
            {
                const std::lock_guard lock(mutex_);
                sent_.push_back(number);
            }
            const std::uint32_t reply[] = {0, status};
            REQUIRE(::send(answer, reply, sizeof reply, MSG_NOSIGNAL) == sizeof reply);
            ::close(answer);
        }
    }

    Pair pair_;
    std::mutex mutex_;
    std::vector<std::uint32_t> sent_;
    std::thread thread_;
};

// A file with a word in it, as a tenant has it.
struct Shared {
    int file = ::memfd_create("words", MFD_CLOEXEC);
    std::atomic<std::uint32_t>* word = nullptr;
    explicit Shared(std::uint32_t value) {
        REQUIRE(::ftruncate(file, kFile) == 0);
        void* memory = ::mmap(nullptr, kFile, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        REQUIRE(memory != MAP_FAILED);
        word = new (static_cast<char*>(memory) + kAt) std::atomic<std::uint32_t>(value);
    }
    ~Shared() { ::close(file); }
    void wake() const { call(SYS_futex, word, long{FUTEX_WAKE}, long{INT_MAX}); }
    void begin() const {
        word->store(0);
        wake();
    }
};

template <typename Type>
void append(std::vector<std::byte>& to, const Type& what) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&what);
    to.insert(to.end(), bytes, bytes + sizeof what);
}

void append_step(std::vector<std::byte>& to, std::uint32_t number) {
    append(to, Step{.form = Form::kDatagram,
                    .request = 0,
                    .argument_bytes = sizeof number,
                    .params_bytes = 0,
                    .pointer_at = 0,
                    .status_at = sizeof number});
    append(to, number);
}

std::vector<std::byte> arm_message(std::uint64_t id, std::uint32_t words, std::uint32_t targets) {
    std::vector<std::byte> message;
    append(message, Message{.kind = Kind::kArm, .id = id, .words = words, .targets = targets});
    for (std::uint32_t i = 0; i < words; ++i) append(message, Word{kAt});
    for (std::uint32_t i = 0; i < targets; ++i) {
        append(message, Target{.off_steps = 1, .on_steps = 1});
        append_step(message, kOff + 10 * i);
        append_step(message, kOn + 10 * i);
    }
    return message;
}

// The daemon's side of an actuator that serves in a thread.
class Daemon {
  public:
    Daemon() : actuator_(pair_.ends[1]), thread_([this] { actuator_.serve(); }) {}
    ~Daemon() { end(); }

    void end() {
        if (!thread_.joinable()) return;
        ::close(pair_.ends[0]);
        wait();
    }
    void wait() {
        thread_.join();
        ::close(pair_.ends[1]);
    }
    void send(const std::vector<std::byte>& bytes, const std::vector<int>& files) const {
        iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
        alignas(cmsghdr) char ancillary[CMSG_SPACE(8 * sizeof(int))]{};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        if (!files.empty()) {
            message.msg_control = ancillary;
            message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
            cmsghdr* header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
            std::memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
        }
        REQUIRE(::sendmsg(pair_.ends[0], &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
    }
    void arm(std::uint64_t id, const std::vector<const Shared*>& words, const std::vector<Driver*>& drivers) const {
        std::vector<int> files;
        for (const Shared* shared : words) files.push_back(shared->file);
        std::vector<int> own;
        for (Driver* driver : drivers) own.push_back(driver->file());
        files.insert(files.end(), own.begin(), own.end());
        send(arm_message(id, static_cast<std::uint32_t>(words.size()), static_cast<std::uint32_t>(drivers.size())),
             files);
        for (const int file : own) ::close(file);
    }
    void disarm(std::uint64_t id) const {
        std::vector<std::byte> message;
        append(message, Message{.kind = Kind::kDisarm, .id = id});
        send(message, {});
    }
    // The next that it says, which is to be of this kind.
    Message hear(Kind kind, std::vector<Result>* results = nullptr) const {
        std::byte buffer[4096];
        const ssize_t size = ::recv(pair_.ends[0], buffer, sizeof buffer, 0);
        Message head{};
        REQUIRE(size >= static_cast<ssize_t>(sizeof head));
        std::memcpy(&head, buffer, sizeof head);
        REQUIRE(head.kind == kind);
        REQUIRE(size == static_cast<ssize_t>(sizeof head + head.targets * sizeof(Result)));
        if (results != nullptr) {
            results->resize(head.targets);
            std::memcpy(results->data(), buffer + sizeof head, head.targets * sizeof(Result));
        }
        return head;
    }

    int socket() const { return pair_.ends[0]; }

  private:
    Pair pair_;
    Actuator actuator_;
    std::thread thread_;
};

using Numbers = std::vector<std::uint32_t>;

void it_fires_once_in_order_and_says_what_came_of_it() {
    Driver first, second;
    second.status = 7;
    const Shared shared(1), other(1);
    Daemon daemon;
    daemon.arm(5, {&other, &shared}, {&first, &second});
    shared.begin();
    std::vector<Result> results;
    const Message fired = daemon.hear(Kind::kFired, &results);
    REQUIRE(fired.id == 5 && fired.word == 1 && results.size() == 2);
    REQUIRE(results[0].status == 0 && results[0].error == 0 && results[1].status == 7);
    REQUIRE(results[0].woke_ns <= results[0].began_ns && results[0].began_ns <= results[0].ended_ns);
    REQUIRE(results[0].ended_ns <= results[1].began_ns);
    other.begin();
    daemon.disarm(5);
    daemon.hear(Kind::kDisarmed);
    daemon.end();
    REQUIRE((first.sent() == Numbers{kOff} && second.sent() == Numbers{kOff + 10}));  // what is disarmed stays
}

// What a driver's ioctl does is done here by one of a pipe, which writes how many bytes are in it.
void a_step_can_be_an_ioctl() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const auto ask = [&](int file) {
        Prepared step{.head = {.form = Form::kIoctl,
                               .request = FIONREAD,
                               .argument_bytes = 16,
                               .params_bytes = 4,
                               .pointer_at = 8,
                               .status_at = 0},
                      .bytes = std::vector<std::byte>(20)};
        REQUIRE(step.sound());
        const Outcome outcome = step.send(file);
        void* params = nullptr;
        std::memcpy(&params, step.bytes.data() + 8, sizeof params);
        REQUIRE(params == step.bytes.data() + 16);
        return outcome;
    };
    REQUIRE(ask(ends[0]).done());
    REQUIRE(::write(ends[1], "abc", 3) == 3);
    REQUIRE(ask(ends[0]).status == 3);
    for (const int end : ends) ::close(end);
    REQUIRE(ask(ends[0]).error == EBADF);
}

void what_is_zero_already_fires_and_the_end_of_the_daemon_undoes_it() {
    Driver driver, other;
    const Shared shared(0), quiet(1);
    Daemon daemon;
    daemon.arm(1, {&quiet}, {&other});
    daemon.arm(2, {&shared}, {&driver});
    REQUIRE(daemon.hear(Kind::kFired).id == 2);
    daemon.end();
    REQUIRE((driver.sent() == Numbers{kOff, kOn} && other.sent().empty()));
}

void after_the_answer_nothing_is_done() {
    Driver driver;
    Daemon daemon;
    for (std::uint64_t id = 1; id <= 200; ++id) {
        const Shared shared(1);
        daemon.arm(id, {&shared}, {&driver});
        std::thread tenant([&] { shared.begin(); });
        daemon.disarm(id);
        std::byte buffer[4096];
        Message head{};
        do {
            REQUIRE(::recv(daemon.socket(), buffer, sizeof buffer, 0) > 0);
            std::memcpy(&head, buffer, sizeof head);
        } while (head.kind != Kind::kDisarmed);
        const std::size_t before = driver.sent().size();
        tenant.join();
        REQUIRE(driver.sent().size() == before);
    }
}

void a_file_that_is_cut_short_keeps_no_other_from_it() {
    Driver driver;
    const Shared cut(1), whole(1);
    Daemon daemon;
    daemon.arm(1, {&cut, &whole}, {&driver});
    cut.wake();
    REQUIRE(::ftruncate(cut.file, 4096) == 0);
    const Shared third(1);
    daemon.arm(2, {&third}, {&driver});  // it looks again
    REQUIRE(daemon.hear(Kind::kDropped).word == 0);
    whole.begin();
    REQUIRE(daemon.hear(Kind::kFired).word == 1);
}

void who_disturbs_is_left_out() {
    Driver driver;
    const Shared loud(1), quiet(1);
    Daemon daemon;
    daemon.arm(1, {&loud, &quiet}, {&driver});
    std::atomic<bool> done{false};
    std::thread tenant([&] {
        for (std::uint32_t value = 1; !done; ++value) {
            loud.word->store(value | 1);
            loud.wake();
        }
    });
    REQUIRE(daemon.hear(Kind::kDropped).word == 0);
    done = true;
    tenant.join();
    loud.begin();
    quiet.begin();
    REQUIRE(daemon.hear(Kind::kFired).word == 1);
}

void nonsense_ends_it_and_undoes_nothing() {
    Driver driver;
    const Shared shared(0);
    Daemon daemon;
    daemon.arm(1, {&shared}, {&driver});
    daemon.hear(Kind::kFired);
    daemon.send(std::vector<std::byte>(sizeof(Message)), {});
    daemon.wait();
    REQUIRE((driver.sent() == Numbers{kOff}));
}

// Whatever a message says of itself, what is read lies within it.
void messages_that_are_nearly_in_order() {
    checks::Numbers numbers(1);
    int taken = 0;
    for (int i = 0; i < 20'000; ++i) {
        std::vector<std::byte> message = arm_message(1, 1, 2);
        for (std::uint64_t changes = numbers.below(4); changes > 0; --changes)
            message[numbers.below(message.size())] = static_cast<std::byte>(numbers.next());
        message.resize(message.size() - (numbers.below(4) == 0 ? numbers.below(message.size()) : 0));
        std::vector<Descriptor> descriptors(3);
        taken += read_arm(message, descriptors).has_value();
    }
    REQUIRE(taken > 1000 && taken < 19'000);
}

}  // namespace

int main() {
    messages_that_are_nearly_in_order();
    a_step_can_be_an_ioctl();
    if (Waiting::unable() == 0) {  // an emulator of another processor may lack the call
        it_fires_once_in_order_and_says_what_came_of_it();
        what_is_zero_already_fires_and_the_end_of_the_daemon_undoes_it();
        after_the_answer_nothing_is_done();
        a_file_that_is_cut_short_keeps_no_other_from_it();
        who_disturbs_is_left_out();
        nonsense_ends_it_and_undoes_nothing();
    }
    std::puts("ok");
    return 0;
}
