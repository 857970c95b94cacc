#include "nvml/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "shared/datagram.hpp"

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

std::size_t Session::ask(const wire::Request& request, std::span<std::byte> answer) const {
    if (!send_datagram(socket_.get(), std::as_bytes(std::span(&request, 1)), -1, 0)) return 0;
    return static_cast<std::size_t>(std::max<ssize_t>(receive_datagram(socket_.get(), answer, 0).bytes, 0));
}

bool Session::connect() {
    const char* directory = std::getenv(names::kEmulatedGpu);
    if (!directory) return false;
    socket_ = connect_to(std::string(directory) + "/" + wire::kGpuSocket);
    wire::Reply reply{};
    if (!socket_ ||
        ask({.call = wire::Call::kMemoryInfo}, std::as_writable_bytes(std::span(&reply, 1))) != sizeof reply)
        return false;
    for (std::uint32_t i = 0; i < reply.value; ++i) devices.push_back({i});
    return true;
}

std::optional<Session::Memory> Session::memory(std::uint32_t gpu) {
    wire::Reply reply{};
    const wire::Request request{.call = wire::Call::kMemoryInfo, .gpu = gpu};
    if (ask(request, std::as_writable_bytes(std::span(&reply, 1))) != sizeof reply || reply.result != 0)
        return std::nullopt;
    return Memory{reply.bytes, reply.total, std::to_array(reply.uuid)};
}

template <typename T, std::uint32_t kMost>
std::optional<std::vector<T>> Session::list(wire::Call call, std::uint32_t gpu) {
    struct {
        wire::Reply reply;
        T entries[kMost];
    } answer;
    const std::size_t got = ask({.call = call, .gpu = gpu}, std::as_writable_bytes(std::span(&answer, 1)));
    if (got < sizeof answer.reply || answer.reply.result != 0) return std::nullopt;
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
