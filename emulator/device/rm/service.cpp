#include "device/rm/service.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "device/rm/allocations.hpp"
#include "device/rm/controls.hpp"

namespace emulator {
namespace {

// A whole argument, of the right size.
template <typename Argument>
Argument get(std::span<const std::byte> bytes) {
    Argument value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
}

template <typename T>
void put(std::span<std::byte> bytes, std::size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
}

constexpr std::size_t kMaxClients = 256;  // of one open file

bool is_root_class(std::uint32_t cls) {
    return cls == rm_class::kRoot || cls == rm_class::kRootNonPrivileged || cls == rm_class::kRootClient;
}

}  // namespace

RmAnswer RmService::call(const RmCaller& caller, std::uint32_t nr, std::span<std::byte> argument,
                         std::span<std::byte> parameters, Time now) {
    switch (nr) {
        case rm::number::kRmControl:
            return control(caller, argument, parameters, now);
        case rm::number::kRmAlloc:
            return allocate(caller, argument, parameters);
        case rm::number::kRmFree:
            return free(caller, argument, now);
        case rm::number::kRmMapMemory:
            return map(caller, argument);
        default:
            return {.error = EINVAL};
    }
}

RmAnswer RmService::control(const RmCaller& caller, std::span<std::byte> argument, std::span<std::byte> parameters,
                            Time now) {
    if (argument.size() != sizeof(rm::Nvos54Control)) return {.error = EINVAL};
    const auto asked = get<rm::Nvos54Control>(argument);
    const auto answer = [&](std::uint32_t code, Time delay = 0) -> RmAnswer {
        put(argument, offsetof(rm::Nvos54Control, status), code);
        return {.delay = delay};
    };
    RmClient* client = tree_.client(asked.client, caller.open_file);
    if (!client) return answer(status::kInvalidClient);
    RmObject* object = nullptr;
    if (asked.object != asked.client) {
        const auto it = client->objects.find(asked.object);
        if (it == client->objects.end()) return answer(status::kObjectNotFound);
        object = &it->second;
    }
    const Control* control = find_control(asked.command);
    if (!control || control->object_class != (object ? object->cls : rm_class::kRootClient))
        return answer(status::kNotSupported);
    if (asked.params_size != control->bytes || parameters.size() != control->bytes ||
        (control->bytes == 0 && asked.params != nullptr))
        return answer(status::kInvalidArgument);
    if (control->privileged && !caller.privileged()) return answer(status::kInsufficientPermissions);
    ControlCall call{tree_, gpus_, caller, asked.client, asked.object, object, parameters, now, control->delay};
    const std::uint32_t code = control->handle(call);
    return answer(code, call.delay);
}

RmAnswer RmService::allocate(const RmCaller& caller, std::span<std::byte> argument, std::span<std::byte> parameters) {
    const bool is_short = argument.size() == sizeof(rm::Nvos21Alloc);
    if (!is_short && argument.size() != sizeof(rm::Nvos64Alloc)) return {.error = EINVAL};
    const auto asked = get<rm::Nvos21Alloc>(argument);  // both begin alike
    const std::size_t status_at = is_short ? offsetof(rm::Nvos21Alloc, status) : offsetof(rm::Nvos64Alloc, status);
    const auto put_handle = [&](std::uint32_t handle) { put(argument, offsetof(rm::Nvos21Alloc, new_), handle); };
    const auto answer = [&](std::uint32_t code) -> RmAnswer {
        put(argument, status_at, code);
        return {};
    };
    if (is_root_class(asked.class_)) {
        if (tree_.count_clients(caller.open_file) >= kMaxClients) return answer(status::kInsufficientResources);
        put_handle(tree_.add_client(caller.open_file));
        return answer(status::kOk);
    }
    RmClient* client = tree_.client(asked.root, caller.open_file);
    if (!client) return answer(status::kInvalidClient);
    // Device memory is limited by itself: an object of it takes a page or more.
    if (asked.class_ != rm_class::kDeviceMemory && client->objects.size() >= RmTree::kMaxObjects)
        return answer(status::kInsufficientResources);
    const Allocation* allocation = find_allocation(asked.class_);
    if (!allocation) return answer(status::kInvalidClass);
    if (parameters.size() != allocation->parameter_bytes && !(allocation->parameters_optional && parameters.empty()))
        return answer(status::kInvalidArgument);
    AllocationCall call{tree_, gpus_, *client, asked.root, parameters, {.cls = asked.class_, .parent = asked.parent}};
    if (const std::uint32_t refusal = allocation->make(call); refusal != status::kOk) return answer(refusal);
    std::uint32_t handle = asked.new_;
    if (!tree_.add_object(asked.root, handle, std::move(call.object))) return answer(status::kInsertDuplicateName);
    put_handle(handle);
    return answer(status::kOk);
}

RmAnswer RmService::free(const RmCaller& caller, std::span<std::byte> argument, Time now) {
    if (argument.size() != sizeof(rm::Nvos00Free)) return {.error = EINVAL};
    const auto asked = get<rm::Nvos00Free>(argument);
    std::uint32_t code = status::kOk;
    if (!tree_.client(asked.root, caller.open_file))
        code = status::kInvalidClient;
    else if (!tree_.free(asked.root, asked.old, now))
        code = status::kObjectNotFound;
    put(argument, offsetof(rm::Nvos00Free, status), code);
    return {};
}

RmAnswer RmService::map(const RmCaller& caller, std::span<std::byte> argument) {
    if (argument.size() != sizeof(rm::Nvos33MapMemory)) return {.error = EINVAL};
    const auto asked = get<rm::Nvos33MapMemory>(argument);
    const auto answer = [&](std::uint32_t code, int fd = -1) -> RmAnswer {
        put(argument, offsetof(rm::Nvos33MapMemory, status), code);
        return {.fd = fd};
    };
    const RmClient* client = tree_.client(asked.client, caller.open_file);
    if (!client) return answer(status::kInvalidClient);
    if (asked.device != asked.client) return answer(status::kInvalidObjectHandle);
    const auto it = client->objects.find(asked.memory);
    if (it == client->objects.end()) return answer(status::kObjectNotFound);
    const auto& memory = it->second.memory;
    if (!memory) return answer(status::kNotSupported);
    // The descriptor shows all of it, for reading.
    // It comes with the answer: a driver's caller brings one.
    if (asked.offset != 0 || asked.flags != rm::kMapReadOnly) return answer(status::kInvalidArgument);
    if (asked.length == 0 || asked.length > memory->size()) return answer(status::kInvalidLimit);
    return answer(status::kOk, memory->fd());
}

}  // namespace emulator
