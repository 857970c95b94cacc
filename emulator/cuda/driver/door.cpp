#include "cuda/driver/door.hpp"

#include <fcntl.h>
#include <linux/ioctl.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "shared/datagram.hpp"
#include "shared/protocol.hpp"

namespace emulator::cuda {
namespace {

// Where the driver's structures keep the pointer to their parameters, and how many bytes those are.
struct Parameters {
    std::uint32_t number;
    std::size_t argument_bytes;
    std::size_t pointer;  // offsets
    std::size_t bytes;
};
template <typename Argument>
constexpr Parameters parameters_in(std::uint32_t number) {
    return {number, sizeof(Argument), offsetof(Argument, params), offsetof(Argument, params_size)};
}
constexpr Parameters kParameters[] = {
    parameters_in<rm::Nvos54Control>(rm::number::kRmControl),
    parameters_in<rm::Nvos21Alloc>(rm::number::kRmAlloc),
    parameters_in<rm::Nvos64Alloc>(rm::number::kRmAlloc),
};

std::span<std::byte> parameters_of(std::uint32_t number, std::span<const std::byte> argument) {
    for (const Parameters& known : kParameters) {
        if (known.number != number || known.argument_bytes != argument.size()) continue;
        std::uint64_t pointer = 0;
        std::uint32_t bytes = 0;
        std::memcpy(&pointer, argument.data() + known.pointer, sizeof pointer);
        std::memcpy(&bytes, argument.data() + known.bytes, sizeof bytes);
        return {reinterpret_cast<std::byte*>(pointer), pointer ? bytes : 0};
    }
    return {};
}

// The file on which answered requests are repeated as true ioctls, for whoever watches those in the kernel; -1 for
// none.
int twin() {
    static const int descriptor = [] {
        const char* path = std::getenv(names::kEmulatedTwin);
        return path ? ::open(path, O_RDWR | O_CLOEXEC) : -1;
    }();
    return descriptor;
}

// 0 or an errno.
int call(int descriptor, std::uint32_t number, std::span<std::byte> argument) {
    const std::span<std::byte> parameters = parameters_of(number, argument);
    if (argument.empty() || parameters.size() > wire::kRmMaxBytes) return EINVAL;
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return errno;
    const UniqueFd mine(pair[0]);
    UniqueFd theirs(pair[1]);
    const wire::RmRequest request{wire::kRmMagic, number, static_cast<std::uint32_t>(argument.size()),
                                  static_cast<std::uint32_t>(parameters.size())};
    static_assert(sizeof(wire::RmRequest) == sizeof(wire::RmReply));
    std::vector<std::byte> bytes(sizeof request + argument.size() + parameters.size());
    std::byte* const body = bytes.data() + sizeof request;
    std::memcpy(bytes.data(), &request, sizeof request);
    std::memcpy(body, argument.data(), argument.size());
    if (!parameters.empty()) std::memcpy(body + argument.size(), parameters.data(), parameters.size());
    if (!send_datagram(descriptor, bytes, theirs.get(), 0)) return errno;
    theirs = UniqueFd();  // the device has the only copy: without it, no answer is awaited
    const Datagram received = receive_datagram(mine.get(), bytes, 0);
    if (received.bytes != static_cast<ssize_t>(bytes.size())) return EIO;
    wire::RmReply reply;
    std::memcpy(&reply, bytes.data(), sizeof reply);
    if (reply.error != 0) return reply.error;
    std::memcpy(argument.data(), body, argument.size());
    if (!parameters.empty()) std::memcpy(parameters.data(), body + argument.size(), parameters.size());
    return 0;
}

}  // namespace

bool has_twin() { return twin() >= 0; }

void repeat_on_twin(unsigned long request, void* argument) {
    if (has_twin()) ::ioctl(twin(), request, argument);
}

}  // namespace emulator::cuda

int runlist_emulated_ioctl(int descriptor, unsigned long request, void* argument) {
    if (_IOC_TYPE(request) != emulator::rm::kMagic || !argument) {
        errno = EINVAL;
        return -1;
    }
    const int error =
        emulator::cuda::call(descriptor, _IOC_NR(request), {static_cast<std::byte*>(argument), _IOC_SIZE(request)});
    if (error == 0) {
        emulator::cuda::repeat_on_twin(request, argument);
        return 0;
    }
    errno = error;
    return -1;
}
