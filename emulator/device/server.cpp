#include "device/server.hpp"

#include <cuda.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <utility>

#include "model/timing.hpp"
#include "shared/clock.hpp"
#include "shared/datagram.hpp"
#include "shared/uuid.hpp"

namespace emulator {
namespace {

// Timers come late, so the loop is awake some time before anything is due, and looks until then. How long is learnt:
// one timer in nine comes later than that. What is later than the most had no processor, which no looking helps.
// Nor does it help where there are few of them: it would take one from the programs that are to see what is due.
constexpr Time kLeastEarly = 10 * timing::kMicrosecond;
constexpr Time kMostEarly = 100 * timing::kMicrosecond;
constexpr unsigned kFewProcessors = 2;
constexpr Time kLonger = 8 * timing::kMicrosecond;
constexpr Time kShorter = 1 * timing::kMicrosecond;
constexpr int kMessagesAtOnce = 64;

Time most_early() { return std::thread::hardware_concurrency() > kFewProcessors ? kMostEarly : kLeastEarly; }

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

void add_to(int epoll, int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        fail("cannot watch a descriptor: " + std::string(std::strerror(errno)));
}

std::vector<Gpu> make_gpus(const ServerOptions& options, GpuListener& listener) {
    std::vector<Gpu> gpus;
    gpus.reserve(options.gpus);
    std::error_code ignored;
    const std::string where = std::filesystem::weakly_canonical(options.directory, ignored).string();
    for (std::uint32_t i = 0; i < options.gpus; ++i)
        gpus.emplace_back(i, options.memory_bytes, make_uuid(where, i), listener);
    return gpus;
}

}  // namespace

Server::Server(const ServerOptions& options)
    : options_(options),
      gpus_(make_gpus(options, *this)),
      rm_(gpus_),
      service_(rm_, gpus_),
      most_early_(most_early()),
      early_(most_early_) {
    take_directory();
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    ::sigprocmask(SIG_BLOCK, &ending, nullptr);
    signals_ = UniqueFd(::signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK));
    control_listener_ = listen_on(wire::kControlSocket);
    gpu_listener_ = listen_on(wire::kGpuSocket);
    for (const int fd : {timer_.get(), signals_.get(), control_listener_.get(), gpu_listener_.get()})
        add_to(epoll_.get(), fd);
    if (options_.exit_with_stdin) add_to(epoll_.get(), STDIN_FILENO);
}

Server::~Server() {
    connections_.clear();
    for (const char* name : {wire::kControlSocket, wire::kGpuSocket, wire::kOpenedFile})
        ::unlink((options_.directory + "/" + name).c_str());
}

// Makes the directory ours. The lock says whether sockets found there belong to somebody alive.
void Server::take_directory() {
    const std::string& directory = options_.directory;
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
        fail("cannot create " + directory + ": " + std::strerror(errno));
    lock_ = UniqueFd(::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock_) fail("cannot use " + directory + ": " + std::strerror(errno));
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0)
        fail("an emulated GPU is already running in " + directory + "; stop it, or choose another directory");
    const UniqueFd opened(::open((directory + "/" + wire::kOpenedFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!opened) fail("cannot write in " + directory + ": " + std::strerror(errno));
}

UniqueFd Server::listen_on(const std::string& name) const {
    const std::string path = options_.directory + "/" + name;
    const auto address = socket_address(path);
    if (!address)
        fail("the path " + path + " is too long for a socket (" + std::to_string(sizeof address->sun_path - 1) +
             " bytes)");
    ::unlink(path.c_str());
    UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
        ::listen(fd.get(), 128) != 0)
        fail("cannot listen on " + path + ": " + std::strerror(errno));
    // Who may reach the directory may use the GPU, as with the device nodes of a real one.
    ::chmod(path.c_str(), 0666);
    return fd;
}

void Server::accept_all(int listener, bool gpu) {
    for (;;) {
        UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd) return;
        ucred peer{};
        socklen_t size = sizeof peer;
        ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
        const int on = 1;
        ::setsockopt(fd.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
        const int key = fd.get();
        add_to(epoll_.get(), key);
        Connection connection{std::move(fd), next_id_++, peer.pid, peer.uid, nullptr};
        if (gpu) connection.process = std::make_unique<Process>(peer.pid, peer.uid, gpus_, rm_, events_);
        connections_.emplace(key, std::move(connection));
    }
}

void Server::close_connection(int fd) {
    const auto it = connections_.find(fd);
    if (it == connections_.end()) return;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    const bool open_file = !it->second.process;
    const Time now = clock_now();
    advance(now);
    // The last copy of an open file is gone: its clients go, and so does what ran under them.
    if (open_file)
        rm_.close_file(it->second.id, now);
    else
        it->second.process->end(now);
    connections_.erase(it);
    if (open_file) close_orphans();
}

// Ends the processes whose contexts have lost their RM objects.
void Server::close_orphans() {
    std::vector<int> orphans;
    for (const auto& [fd, connection] : connections_)
        if (connection.process && connection.process->lost_objects()) orphans.push_back(fd);
    for (const int fd : orphans) close_connection(fd);
}

void Server::read_control(Connection& connection) {
    const int fd = connection.fd.get();
    static std::vector<std::byte> buffer(sizeof(wire::RmRequest) + wire::kRmMaxBytes);
    for (int i = 0; i < kMessagesAtOnce; ++i) {
        Datagram received = receive_datagram(fd, buffer, MSG_DONTWAIT);
        if (received.bytes < 0) return;
        if (received.bytes == 0) return close_connection(fd);
        wire::RmRequest request;
        const auto bytes = static_cast<std::size_t>(received.bytes);
        if (received.truncated || !received.fd || bytes < sizeof request) continue;
        std::memcpy(&request, buffer.data(), sizeof request);
        if (request.magic != wire::kRmMagic || request.argument_size > wire::kRmMaxBytes ||
            request.params_size > wire::kRmMaxBytes ||
            bytes != sizeof request + request.argument_size + request.params_size)
            continue;
        const Time now = clock_now();
        const std::span<std::byte> body(buffer.data() + sizeof request, bytes - sizeof request);
        const RmCaller caller{connection.id, received.sender.uid, received.sender.pid};
        const RmAnswer answer = service_.call(caller, request.number, body.first(request.argument_size),
                                              body.subspan(request.argument_size), now);
        if (request.number == rm::number::kRmFree) close_orphans();
        const wire::RmReply reply{answer.error, request.argument_size, request.params_size, 0};
        std::vector<std::byte> bytes_out(sizeof reply + body.size());
        std::memcpy(bytes_out.data(), &reply, sizeof reply);
        std::memcpy(bytes_out.data() + sizeof reply, body.data(), body.size());
        if (answer.delay == 0)
            send_datagram(received.fd.get(), bytes_out, answer.fd, MSG_DONTWAIT);
        else
            replies_.emplace(now + answer.delay, DelayedReply{std::move(received.fd), std::move(bytes_out)});
    }
}

// A process may only name its own RM client.
bool Server::allow_hello(const Connection& connection, std::uint32_t client) {
    const RmClient* found = rm_.client(client);
    if (!found) return false;
    for (const auto& [fd, other] : connections_)
        if (other.id == found->open_file) return other.pid == connection.pid && other.uid == connection.uid;
    return false;
}

template <typename Entry, std::uint32_t kMost>
bool Server::list(int fd, std::uint32_t gpu, std::uint32_t (Server::*fill)(std::uint32_t, Time, Entry*)) {
    struct {
        wire::Reply reply{};
        Entry entries[kMost];
    } answer;
    if (gpu < gpus_.size()) {
        const Time now = clock_now();
        gpus_[gpu].reach(BusyHistory::end_of(BusyHistory::last_period(now)));
        answer.reply.value = (this->*fill)(gpu, now, answer.entries);
    } else {
        answer.reply.result = CUDA_ERROR_INVALID_DEVICE;
    }
    const std::size_t bytes = sizeof answer.reply + answer.reply.value * sizeof(Entry);
    return send_datagram(fd, std::as_bytes(std::span(&answer, 1)).first(bytes), -1, MSG_DONTWAIT);
}

void Server::read_gpu(Connection& connection) {
    const int fd = connection.fd.get();
    for (int i = 0; i < kMessagesAtOnce; ++i) {
        wire::Request request{};
        const Datagram received = receive_datagram(fd, std::as_writable_bytes(std::span(&request, 1)), MSG_DONTWAIT);
        if (received.bytes < 0) break;
        if (received.bytes == 0) return close_connection(fd);
        if (received.bytes != sizeof request || received.truncated) return close_connection(fd);
        if (request.call == wire::Call::kHello && !allow_hello(connection, request.hello.client))
            return close_connection(fd);
        if (request.call == wire::Call::kListProcesses || request.call == wire::Call::kListSamples) {
            const bool sent =
                request.call == wire::Call::kListProcesses
                    ? list<wire::ListedProcess, wire::kMaxListed>(fd, request.gpu, &Server::list_processes)
                    : list<wire::BusySample, wire::kMaxSamples>(fd, request.gpu, &Server::list_samples);
            if (!sent) return close_connection(fd);
            continue;
        }
        const auto answer = connection.process->handle(request, clock_now());
        if (answer && !send_datagram(fd, std::as_bytes(std::span(&answer->reply, 1)), answer->fd, MSG_DONTWAIT))
            return close_connection(fd);
        if (connection.process->broken()) return close_connection(fd);
    }
}

std::uint32_t Server::list_processes(std::uint32_t gpu, Time now, wire::ListedProcess* out) {
    std::map<pid_t, wire::ListedProcess> found;
    for (const auto& [fd, connection] : connections_) {
        if (connection.process) {
            connection.process->describe(gpu, now, found[connection.pid]);
            continue;
        }
        // As a driver does: memory is whoever's made the client, as long as anybody has its file open.
        for (const std::uint32_t client : rm_.clients_of(connection.id))
            if (rm_.has_context(client, gpu)) {
                found[connection.pid].pid = connection.pid;
                found[connection.pid].memory += rm_.memory(client, gpu);
            }
    }
    std::uint32_t count = 0;
    for (const auto& [pid, process] : found)
        if (process.pid != 0 && count < wire::kMaxListed) out[count++] = process;
    return count;
}

std::uint32_t Server::list_samples(std::uint32_t gpu, Time now, wire::BusySample* out) {
    static_assert(timing::kSamples <= wire::kMaxSamples);
    std::uint32_t count = 0;
    const BusyHistory& history = gpus_[gpu].runlist.busy();
    const std::int64_t end = BusyHistory::last_period(now) + 1;
    for (std::int64_t period = std::max<std::int64_t>(0, end - timing::kSamples); period < end; ++period)
        out[count++] = {.end = BusyHistory::end_of(period), .percent = BusyHistory::percent(history.busy(period))};
    return count;
}

Process* Server::owner(std::uint32_t gpu, QueueId queue) {
    for (auto& [fd, connection] : connections_)
        if (connection.process && connection.process->streams().owns(gpu, queue)) return connection.process.get();
    return nullptr;
}

void Server::on_progress(std::uint32_t gpu, QueueId queue, double fraction) {
    if (Process* process = owner(gpu, queue)) process->streams().on_progress(gpu, queue, fraction);
}

void Server::on_complete(std::uint32_t gpu, QueueId queue, Time at) {
    if (Process* process = owner(gpu, queue)) process->streams().on_complete(gpu, queue, at);
}

void Server::advance(Time now) {
    for (Gpu& gpu : gpus_) gpu.advance(now);
}

void Server::send_due_replies(Time now) {
    while (!replies_.empty() && replies_.begin()->first <= now) {
        const DelayedReply& reply = replies_.begin()->second;
        ::send(reply.socket.get(), reply.bytes.data(), reply.bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        replies_.erase(replies_.begin());
    }
}

// When something that somebody can see is due.
Time Server::next_deadline(Time now) {
    Time next = replies_.empty() ? kNever : replies_.begin()->first;
    // Flags first, everywhere: a kernel that one lets end may bring the deadline of another nearer.
    for (auto& [fd, connection] : connections_)
        if (connection.process) next = std::min(next, connection.process->streams().poll_flags(now));
    for (auto& [fd, connection] : connections_)
        if (connection.process) next = std::min(next, connection.process->streams().next_deadline(now));
    return next;
}

void Server::wait_until(Time deadline) {
    const Time now = clock_now();
    int timeout = 0;
    if (deadline == kNever || deadline - now > early_) {
        const Time at = deadline == kNever ? 0 : deadline - early_;
        if (at != alarm_) {
            const itimerspec alarm{.it_interval = {},
                                   .it_value = {.tv_sec = static_cast<time_t>(at / 1'000'000'000),
                                                .tv_nsec = static_cast<long>(at % 1'000'000'000)}};
            ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &alarm, nullptr);
            alarm_ = at;
        }
        timeout = -1;
    }
    epoll_event events[64];
    const int count = ::epoll_wait(epoll_.get(), events, 64, timeout);
    // CUDA calls first: they carry the time at which they were made, and a flush of the context-switch log settles what
    // was before it.
    std::partition(events, events + std::max(count, 0), [this](const epoll_event& event) {
        const auto it = connections_.find(event.data.fd);
        return it != connections_.end() && it->second.process;
    });
    for (auto* event = events; event < events + count; ++event) serve(event->data.fd);
}

void Server::learn_from(Time late) {
    if (late <= early_)
        early_ = std::max(kLeastEarly, early_ - kShorter);
    else if (late <= most_early_)
        early_ = std::min(most_early_, early_ + kLonger);
}

void Server::serve(int fd) {
    if (fd == timer_.get()) {
        std::uint64_t ignored = 0;
        if (::read(fd, &ignored, sizeof ignored) > 0) learn_from(clock_now() - std::exchange(alarm_, 0));
    } else if (fd == signals_.get()) {
        stopping_ = true;
    } else if (fd == control_listener_.get()) {
        accept_all(fd, false);
    } else if (fd == gpu_listener_.get()) {
        accept_all(fd, true);
    } else if (options_.exit_with_stdin && fd == STDIN_FILENO) {
        char ignored[256];
        if (::read(fd, ignored, sizeof ignored) <= 0) stopping_ = true;
    } else if (const auto it = connections_.find(fd); it != connections_.end()) {
        it->second.process ? read_gpu(it->second) : read_control(it->second);
    }
}

void Server::run() {
    while (!stopping_) {
        Time now = clock_now();
        const Time deadline = next_deadline(now);
        wait_until(deadline);
        now = clock_now();
        advance(now);
        send_due_replies(now);
        for (Gpu& gpu : gpus_) gpu.switch_log.deliver_if_due(now);
        for (auto& [fd, connection] : connections_)
            if (connection.process) connection.process->streams().prepare(now + early_, now);
    }
}

}  // namespace emulator
