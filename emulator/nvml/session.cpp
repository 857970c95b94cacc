#include "session.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace emulator::nvml {
namespace {

Session* the_session = nullptr;
pid_t opened_by = 0;

}  // namespace

std::mutex Session::lock;

Session* Session::get() { return the_session && opened_by == ::getpid() ? the_session : nullptr; }

nvmlReturn_t Session::open() {
    if (Session* session = get()) {
        ++session->uses_;
        return NVML_SUCCESS;
    }
    auto* session = new Session;
    if (!session->connect()) {
        delete session;
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    session->uses_ = 1;
    the_session = session;  // a parent's, seen in a child, is left alone: its socket is the parent's
    opened_by = ::getpid();
    return NVML_SUCCESS;
}

nvmlReturn_t Session::close() {
    Session* session = get();
    if (!session) return NVML_ERROR_UNINITIALIZED;
    if (--session->uses_ > 0) return NVML_SUCCESS;
    delete session;
    the_session = nullptr;
    return NVML_SUCCESS;
}

Session::~Session() {
    if (socket_ >= 0) ::close(socket_);
}

bool Session::connect() {
    const char* directory = std::getenv(names::kEmulatedGpu);
    if (!directory) return false;
    const std::string path = std::string(directory) + "/" + wire::kGpuSocket;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return false;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    socket_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (socket_ < 0 || ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        return false;
    const wire::Request request{.call = wire::Call::kMemoryInfo};
    wire::Reply reply{};
    if (::send(socket_, &request, sizeof request, MSG_NOSIGNAL) != sizeof request ||
        ::recv(socket_, &reply, sizeof reply, 0) != sizeof reply)
        return false;
    for (std::uint32_t i = 0; i < reply.value; ++i) devices.push_back({i});
    return true;
}

std::optional<Session::Memory> Session::memory(std::uint32_t gpu) {
    const wire::Request request{.call = wire::Call::kMemoryInfo, .gpu = gpu};
    wire::Reply reply{};
    if (::send(socket_, &request, sizeof request, MSG_NOSIGNAL) != sizeof request ||
        ::recv(socket_, &reply, sizeof reply, 0) != sizeof reply || reply.result != 0)
        return std::nullopt;
    Memory memory{reply.bytes, reply.total, {}};
    std::memcpy(memory.uuid, reply.uuid, sizeof memory.uuid);
    return memory;
}

template <typename T, std::uint32_t kMost>
std::optional<std::vector<T>> Session::list(wire::Call call, std::uint32_t gpu) {
    const wire::Request request{.call = call, .gpu = gpu};
    if (::send(socket_, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) return std::nullopt;
    struct {
        wire::Reply reply;
        T entries[kMost];
    } answer;
    const ssize_t got = ::recv(socket_, &answer, sizeof answer, 0);
    if (got < static_cast<ssize_t>(sizeof answer.reply) || answer.reply.result != 0) return std::nullopt;
    return std::vector<T>(answer.entries, answer.entries + answer.reply.value);
}

std::optional<std::vector<wire::ListedProcess>> Session::processes(std::uint32_t gpu) {
    return list<wire::ListedProcess, wire::kMaxListed>(wire::Call::kListProcesses, gpu);
}

std::optional<std::vector<wire::BusySample>> Session::samples(std::uint32_t gpu) {
    return list<wire::BusySample, wire::kMaxSamples>(wire::Call::kListSamples, gpu);
}

}  // namespace emulator::nvml

using emulator::nvml::Session;

nvmlReturn_t DECLDIR nvmlInitWithFlags(unsigned) {
    const std::lock_guard guard(Session::lock);
    return Session::open();
}

nvmlReturn_t DECLDIR nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t DECLDIR nvmlShutdown(void) {
    const std::lock_guard guard(Session::lock);
    return Session::close();
}
