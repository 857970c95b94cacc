#include "device/rm/service.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "device/rm/allocations.hpp"
#include "device/rm/controls.hpp"

namespace emulator {
namespace {

template <typename T>
T get(std::span<const std::byte> bytes, std::size_t offset) {
    T value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

template <typename T>
void put(std::span<std::byte> bytes, std::size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
}

// Offsets in the driver's own structures.
namespace nvos54 {
constexpr std::size_t kBytes = 32, kClient = 0, kObject = 4, kCommand = 8, kParams = 16, kParamsSize = 24, kStatus = 28;
}
namespace nvos00 {
constexpr std::size_t kBytes = 16, kRoot = 0, kObject = 8, kStatus = 12;
}
namespace nvos21 {
constexpr std::size_t kBytes = 32, kRoot = 0, kParent = 4, kNew = 8, kClass = 12, kStatus = 28;
}
namespace nvos64 {
constexpr std::size_t kBytes = 48, kStatus = 40;  // the rest as NVOS21
}

namespace nvos33 {  // with the descriptor to map, which is not needed here: it comes with the answer
constexpr std::size_t kBytes = 56, kClient = 0, kDevice = 4, kMemory = 8, kOffset = 16, kLength = 24, kStatus = 40,
                      kFlags = 44;
constexpr std::uint32_t kReadOnly = 1;
}  // namespace nvos33

constexpr std::size_t kMaxClients = 256;  // of one open file

bool is_root_class(std::uint32_t cls) { return cls == 0 || cls == 1 || cls == rm_class::kRoot; }

}  // namespace

RmAnswer RmService::call(const RmCaller& caller, std::uint32_t nr, std::span<std::byte> argument,
                         std::span<std::byte> parameters, Time now) {
    switch (nr) {
        case wire::kRmControl:
            return control(caller, argument, parameters, now);
        case wire::kRmAlloc:
            return allocate(caller, argument, parameters);
        case wire::kRmFree:
            return free(caller, argument, now);
        case wire::kRmMapMemory:
            return map(caller, argument);
        default:
            return {.error = EINVAL};
    }
}

RmAnswer RmService::control(const RmCaller& caller, std::span<std::byte> argument, std::span<std::byte> parameters,
                            Time now) {
    if (argument.size() != nvos54::kBytes) return {.error = EINVAL};
    const auto answer = [&](std::uint32_t code, Time delay = 0) -> RmAnswer {
        put(argument, nvos54::kStatus, code);
        return {.delay = delay};
    };
    const auto client_handle = get<std::uint32_t>(argument, nvos54::kClient);
    const auto handle = get<std::uint32_t>(argument, nvos54::kObject);
    RmClient* client = tree_.client(client_handle, caller.open_file);
    if (!client) return answer(status::kInvalidClient);
    RmObject* object = nullptr;
    if (handle != client_handle) {
        const auto it = client->objects.find(handle);
        if (it == client->objects.end()) return answer(status::kObjectNotFound);
        object = &it->second;
    }
    const Control* control = find_control(get<std::uint32_t>(argument, nvos54::kCommand));
    if (!control || control->cls != (object ? object->cls : rm_class::kRoot)) return answer(status::kNotSupported);
    if (get<std::uint32_t>(argument, nvos54::kParamsSize) != control->parameter_bytes ||
        parameters.size() != control->parameter_bytes ||
        (control->parameter_bytes == 0 && get<std::uint64_t>(argument, nvos54::kParams) != 0))
        return answer(status::kInvalidArgument);
    if (control->privileged && !caller.privileged()) return answer(status::kInsufficientPermissions);
    ControlCall call{tree_, gpus_, caller, client_handle, handle, object, parameters, now, control->delay};
    const std::uint32_t code = control->handle(call);
    return answer(code, call.delay);
}

RmAnswer RmService::allocate(const RmCaller& caller, std::span<std::byte> argument, std::span<std::byte> parameters) {
    if (argument.size() != nvos21::kBytes && argument.size() != nvos64::kBytes) return {.error = EINVAL};
    const std::size_t status_at = argument.size() == nvos21::kBytes ? nvos21::kStatus : nvos64::kStatus;
    const auto answer = [&](std::uint32_t code) -> RmAnswer {
        put(argument, status_at, code);
        return {};
    };
    const auto cls = get<std::uint32_t>(argument, nvos21::kClass);
    if (is_root_class(cls)) {
        if (tree_.count_clients(caller.open_file) >= kMaxClients) return answer(status::kInsufficientResources);
        put(argument, nvos21::kNew, tree_.add_client(caller.open_file));
        return answer(status::kOk);
    }
    const auto root = get<std::uint32_t>(argument, nvos21::kRoot);
    const auto parent = get<std::uint32_t>(argument, nvos21::kParent);
    RmClient* client = tree_.client(root, caller.open_file);
    if (!client) return answer(status::kInvalidClient);
    // Device memory is limited by itself: an object of it takes a page or more.
    if (cls != rm_class::kDeviceMemory && client->objects.size() >= RmTree::kMaxObjects)
        return answer(status::kInsufficientResources);
    const Allocation* allocation = find_allocation(cls);
    if (!allocation) return answer(status::kInvalidClass);
    if (parameters.size() != allocation->parameter_bytes && !(allocation->parameters_optional && parameters.empty()))
        return answer(status::kInvalidArgument);
    AllocationCall call{tree_, gpus_, *client, root, parameters, {.cls = cls, .parent = parent}};
    if (const std::uint32_t refusal = allocation->make(call); refusal != status::kOk) return answer(refusal);
    auto handle = get<std::uint32_t>(argument, nvos21::kNew);
    if (!tree_.add_object(root, handle, std::move(call.object))) return answer(status::kDuplicateName);
    put(argument, nvos21::kNew, handle);
    return answer(status::kOk);
}

RmAnswer RmService::free(const RmCaller& caller, std::span<std::byte> argument, Time now) {
    if (argument.size() != nvos00::kBytes) return {.error = EINVAL};
    const auto root = get<std::uint32_t>(argument, nvos00::kRoot);
    std::uint32_t code = status::kOk;
    if (!tree_.client(root, caller.open_file))
        code = status::kInvalidClient;
    else if (!tree_.free(root, get<std::uint32_t>(argument, nvos00::kObject), now))
        code = status::kObjectNotFound;
    put(argument, nvos00::kStatus, code);
    return {};
}

RmAnswer RmService::map(const RmCaller& caller, std::span<std::byte> argument) {
    if (argument.size() != nvos33::kBytes) return {.error = EINVAL};
    const auto answer = [&](std::uint32_t code, int fd = -1) -> RmAnswer {
        put(argument, nvos33::kStatus, code);
        return {.fd = fd};
    };
    const auto root = get<std::uint32_t>(argument, nvos33::kClient);
    const auto length = get<std::uint64_t>(argument, nvos33::kLength);
    const RmClient* client = tree_.client(root, caller.open_file);
    if (!client) return answer(status::kInvalidClient);
    if (get<std::uint32_t>(argument, nvos33::kDevice) != root) return answer(status::kInvalidObject);
    const auto it = client->objects.find(get<std::uint32_t>(argument, nvos33::kMemory));
    if (it == client->objects.end()) return answer(status::kObjectNotFound);
    const auto& memory = it->second.memory;
    if (!memory) return answer(status::kNotSupported);
    // The descriptor shows all of it, for reading.
    if (get<std::uint64_t>(argument, nvos33::kOffset) != 0 ||
        get<std::uint32_t>(argument, nvos33::kFlags) != nvos33::kReadOnly)
        return answer(status::kInvalidArgument);
    if (length == 0 || length > memory->size()) return answer(status::kInvalidLimit);
    return answer(status::kOk, memory->fd());
}

}  // namespace emulator
