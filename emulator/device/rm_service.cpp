#include "rm_service.hpp"

#include <cerrno>
#include <cstring>
#include <limits>

#include "rm_controls.hpp"

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
constexpr std::size_t kBytes = 32, kClient = 0, kObject = 4, kCommand = 8, kParamsSize = 24, kStatus = 28;
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
        parameters.size() != control->parameter_bytes)
        return answer(status::kInvalidArgument);
    if (control->privileged && !caller.privileged) return answer(status::kInsufficientPermissions);
    ControlCall call{tree_, gpus_, caller.open_file, client_handle, handle, object, parameters, now, control->delay};
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
        put(argument, nvos21::kNew, tree_.add_client(caller.open_file));
        return answer(status::kOk);
    }
    const auto root = get<std::uint32_t>(argument, nvos21::kRoot);
    const auto parent = get<std::uint32_t>(argument, nvos21::kParent);
    RmClient* client = tree_.client(root, caller.open_file);
    if (!client) return answer(status::kInvalidClient);
    std::uint32_t gpu = 0;
    if (cls == rm_class::kDevice) {
        if (parent != root) return answer(status::kInvalidObject);
        if (parameters.size() >= sizeof gpu) gpu = get<std::uint32_t>(parameters, 0);
        if (gpu >= gpus_.size()) return answer(status::kInvalidArgument);
    } else if (cls == rm_class::kSubdevice) {
        const auto device = client->objects.find(parent);
        if (device == client->objects.end() || device->second.cls != rm_class::kDevice)
            return answer(status::kInvalidObject);
        gpu = device->second.gpu;
    } else {
        return answer(status::kInvalidClass);
    }
    const auto made = tree_.add_object(root, parent, get<std::uint32_t>(argument, nvos21::kNew), cls, gpu);
    if (!made) return answer(status::kInvalidArgument);
    put(argument, nvos21::kNew, *made);
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

}  // namespace emulator
