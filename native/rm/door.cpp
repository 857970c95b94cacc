#include "rm/door.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <optional>

#include "core/guest.hpp"
#include "core/say.hpp"
#include "core/uuid.hpp"
#include "region/quota.hpp"
#include "resolve/copies.hpp"
#include "resolve/elf.hpp"
#include "rm/devices.hpp"
#include "rm/objects.hpp"
#include "rm/protocol.hpp"

namespace runlist::rm {

constinit std::atomic<bool> watching{true};
constinit thread_local Wish wish;

namespace {

using region::quota;

constinit Objects objects;
constinit Devices devices;

// A request on its way: what the program called, and where it goes.
struct Request {
    Door real;
    int fd;
    unsigned long request;
    void* argument;

    int pass() const { return real(fd, request, argument); }
};

// Number, size and argument of a request: those that are transferred, where it only names them.
struct Asked {
    unsigned number;
    std::size_t size;
    void* argument;

    explicit Asked(const Request& request)
        : number(_IOC_NR(request.request)), size(_IOC_SIZE(request.request)), argument(request.argument) {
        if (number != number::kTransfer || size != sizeof(Transfer) || argument == nullptr) return;
        const auto* transfer = static_cast<const Transfer*>(argument);
        number = transfer->number;
        size = transfer->size;
        argument = transfer->argument;
    }
};

// One question for device memory, whichever of RM's ways it takes.
struct MemoryQuestion {
    std::uint32_t client;
    std::uint32_t parent;
    std::uint32_t flags;
    std::uint32_t attributes;
    std::uint64_t alignment;
    std::uint32_t* object;  // the answers' places
    std::uint64_t* size;
    std::uint32_t* status;

    bool is_video_memory() const { return (flags & kMemoryVirtual) == 0 && location(attributes) == kInVideoMemory; }
};

// `size` in whole units, and the largest number of whole units when there is no such number.
std::uint64_t rounded_up(std::uint64_t size, std::uint64_t unit) {
    const std::uint64_t more = (unit - size % unit) % unit;
    return size <= UINT64_MAX - more ? size + more : UINT64_MAX - UINT64_MAX % unit;
}

// At least what the driver will make of it: whole pages, aligned as the program wishes.
std::uint64_t expected_bytes(const MemoryQuestion& question) {
    constexpr std::uint64_t kLargestAlignment = 1 << 30;
    const std::uint64_t page = kPageBytes[page_size(question.attributes)];
    const bool aligned = question.alignment <= kLargestAlignment && question.alignment % Objects::kGranularity == 0;
    return rounded_up(*question.size, std::max(page, aligned ? question.alignment : 0));
}

void refund(const Memory& memory) { quota.refund(memory.device, memory.bytes, memory.overhead); }

void remember(std::uint32_t client, std::uint32_t object, const Memory& memory) {
    const std::optional<Memory> before = objects.put(client, object, memory);
    if (!before) {
        static constinit std::atomic<bool> said{false};
        if (!said.exchange(true)) {
            say(Level::kWarning, "no room to remember GPU memory: it counts as held until this process ends");
        }
    } else if (before->bytes != 0) {
        refund(*before);
    }
}

// Frees an object for ourselves. errno stays.
void free_again(const Request& request, std::uint32_t client, std::uint32_t parent, std::uint32_t object) {
    const int saved = errno;
    Nvos00Free free{.root = client, .parent = parent, .old = object, .status = 0};
    request.real(request.fd, kFreeRequest, &free);
    errno = saved;
}

// A subdevice's answer to the question for its UUID, whoever asked.
void hear(const Nvos54Control& control) {
    const auto* info = static_cast<const GetGidInfo*>(control.params);
    if (control.status != status::kOk || info == nullptr || control.params_size != sizeof(*info)) return;
    std::uint8_t uuid[16];
    if (info->length == sizeof(uuid)) {
        std::memcpy(uuid, info->data, sizeof(uuid));
    } else {
        char text[sizeof(info->data)];
        std::memcpy(text, info->data, sizeof(text));
        text[sizeof(text) - 1] = '\0';
        if (!parse_gpu_uuid(text, uuid)) return;
    }
    devices.identify(control.client, control.object, uuid);
}

// Makes sure that the GPU of a device is known. libcuda asks for its UUID before it takes memory, so that hearing it is
// enough: a call of our own would wait behind those of others.
void identify(const Request& request, std::uint32_t client, int device) {
    const std::uint32_t subdevice = devices.to_ask(device);
    if (subdevice == 0) return;
    const int saved = errno;
    GetGidInfo info{.index = 0, .flags = kGidBinary, .length = 0, .data = {}};
    Nvos54Control control{.client = client,
                          .object = subdevice,
                          .command = control::kGetGidInfo.number,
                          .flags = 0,
                          .params = &info,
                          .params_size = sizeof(info),
                          .status = status::kNoMemory};
    if (request.real(request.fd, kControlRequest, &control) == 0) hear(control);
    errno = saved;
}

// Answers for the driver that there is no room.
int refuse(const MemoryQuestion& question, int device) {
    if (wish.is_there) {
        wish.refused_on = device;
    } else {
        quota.count_refusal(device);
    }
    *question.status = status::kNoMemory;
    return 0;
}

int take_memory(const Request& request, const MemoryQuestion& question) {
    const int parent = devices.find(question.client, question.parent);
    identify(request, question.client, parent);
    const int device = devices.in_region(parent);
    const bool is_overhead = !wish.is_there;
    std::uint64_t asked = expected_bytes(question);
    if (!quota.charge(device, asked)) return refuse(question, device);
    const int result = request.pass();
    if (result != 0 || *question.status != status::kOk) {
        quota.settle(device, asked, 0, is_overhead);
        return result;
    }
    const std::uint64_t got = rounded_up(*question.size, Objects::kGranularity);
    if (got > asked) {  // the driver rounded up further than we knew
        if (!quota.charge(device, got - asked)) {
            free_again(request, question.client, question.parent, *question.object);
            quota.settle(device, asked, 0, is_overhead);
            return refuse(question, device);
        }
        asked = got;
    }
    quota.settle(device, asked, got, is_overhead);
    if (got == 0 || device < 0) return result;
    const Memory memory{.bytes = got, .device = device, .parent = parent, .overhead = is_overhead};
    remember(question.client, *question.object, memory);
    return result;
}

// Memory that is asked for in a form that a later driver brought, or that is packed: how much it is we cannot tell.
template <typename Parameters>
bool is_unreadable(const Request& request, const Parameters& alloc) {
    constexpr std::uint32_t kPacked = 1;  // NVOS64_FLAGS_FINN_SERIALIZED
    if constexpr (requires { alloc.flags; }) {
        const std::size_t size = Asked(request).size;
        return alloc.class_ == class_number::kDeviceMemory && ((alloc.flags & kPacked) != 0 || size > sizeof(alloc));
    }
    return false;
}

template <typename Parameters>
int alloc(const Request& request, Parameters& alloc) {
    if (quota.on() && is_unreadable(request, alloc)) {
        static constinit std::atomic<bool> said{false};
        const bool strict = quota.region().header().strict != 0;
        if (!said.exchange(true)) {
            say(Level::kWarning, "this driver asks for GPU memory in a form that is not known: it is ",
                strict ? "refused (RUNLIST_STRICT)" : "not counted");
        }
        if (!strict) return request.pass();
        alloc.status = status::kNoMemory;
        return 0;
    }
    const auto made = [&](int result) { return result == 0 && alloc.status == status::kOk; };
    switch (alloc.class_) {
        case class_number::kRoot:
        case class_number::kRootNonPrivileged:
        case class_number::kRootClient: {
            on_client.asked();
            const int result = request.pass();
            if (made(result)) on_client.made(request.fd, alloc.new_);
            return result;
        }
        case class_number::kDevice: {
            if (!quota.on()) break;
            const int result = request.pass();
            if (made(result)) devices.add_device(alloc.root, alloc.new_);
            return result;
        }
        case class_number::kSubdevice: {
            if (!quota.on()) break;
            const int result = request.pass();
            if (made(result)) devices.add_subdevice(alloc.root, alloc.parent, alloc.new_);
            return result;
        }
        case class_number::kDeviceMemory: {
            auto* memory = static_cast<MemoryParameters*>(alloc.params);
            if (!quota.on() || memory == nullptr) break;
            const MemoryQuestion question{.client = alloc.root,
                                          .parent = alloc.parent,
                                          .flags = memory->flags,
                                          .attributes = memory->attr,
                                          .alignment = memory->alignment,
                                          .object = &alloc.new_,
                                          .size = &memory->size,
                                          .status = &alloc.status};
            if (!question.is_video_memory()) break;
            return take_memory(request, question);
        }
        default:
            break;
    }
    return request.pass();
}

template <typename Parameters>
int alloc_and_tell(const Request& request, Parameters& asked) {
    const int result = alloc(request, asked);
    if (result != 0 || asked.status != status::kOk) return result;
    on_client.works(request.fd, asked.root);
    if (asked.class_ >= kEnginesFrom && (asked.class_ & 0xFF) == kComputeByte)
        on_client.computes(request.fd, asked.root);
    return result;
}

int control(const Request& request, const Nvos54Control& asked) {
    const int result = request.pass();
    if (asked.command == control::kGetGidInfo.number && result == 0 && quota.on()) hear(asked);
    return result;
}

// Memory of one object. It is taken out before the call: afterwards another thread may have made a new object of the
// same handle.
int free_memory(const Request& request, std::uint32_t client, std::uint32_t object, const std::uint32_t& status) {
    const Memory memory = objects.take(client, object);
    const int result = request.pass();
    if (memory.bytes == 0) return result;
    if (result == 0 && status == status::kOk) {
        refund(memory);
    } else {
        remember(client, object, memory);
    }
    return result;
}

int free(const Request& request, const Nvos00Free& free) {
    if (!quota.on()) return request.pass();
    const std::uint32_t client = free.root;
    const std::uint32_t object = free.old;
    const bool whole_client = object == client;
    const Parents parents = whole_client ? devices.of_client(client) : devices.below(client, object);
    if (!whole_client && parents.none()) return free_memory(request, client, object, free.status);
    const int result = request.pass();
    if (result == 0 && free.status == status::kOk) {
        if (whole_client) {
            objects.take_all(client, refund);
        } else {
            objects.take_below(client, parents, refund);
        }
        devices.release(parents);
    }
    return result;
}

int vid_heap_control(const Request& request, Nvos32VidHeap& heap) {
    if (!quota.on()) return request.pass();
    if (heap.function == heap_function::kFree) return free_memory(request, heap.root, heap.memory, heap.status);
    for (const HeapFunction& function : kHeapAllocations) {
        if (heap.function != function.function) continue;
        auto* bytes = reinterpret_cast<std::uint8_t*>(&heap);
        auto* size = reinterpret_cast<std::uint64_t*>(bytes + function.size);
        const MemoryQuestion question{.client = heap.root,
                                      .parent = heap.parent,
                                      .flags = heap.flags,
                                      .attributes = *reinterpret_cast<std::uint32_t*>(bytes + function.attributes),
                                      .alignment = size[1],
                                      .object = &heap.memory,
                                      .size = size,
                                      .status = &heap.status};
        if (question.is_video_memory()) return take_memory(request, question);
    }
    return request.pass();
}

// What kinds of request there are is told by number and size, as the driver does.
int dispatch(const Request& request) {
    const auto [number, size, parameters] = Asked(request);
    if (parameters == nullptr || !watching.load(std::memory_order_relaxed)) return request.pass();
    if (number == number::kRmAlloc && size >= sizeof(Nvos64Alloc))  // a later one has more behind it
        return alloc_and_tell(request, *static_cast<Nvos64Alloc*>(parameters));
    if (number == number::kRmAlloc && size == sizeof(Nvos21Alloc))
        return alloc_and_tell(request, *static_cast<Nvos21Alloc*>(parameters));
    if (number == number::kRmControl && size == sizeof(Nvos54Control))
        return control(request, *static_cast<const Nvos54Control*>(parameters));
    if (number == number::kRmFree && size == sizeof(Nvos00Free))
        return free(request, *static_cast<const Nvos00Free*>(parameters));
    if (number == number::kVidHeapControl && size == sizeof(Nvos32VidHeap))
        return vid_heap_control(request, *static_cast<Nvos32VidHeap*>(parameters));
    return request.pass();
}

using Ioctl = int(int, unsigned long, ...);

// The C library's, or that of whatever other library was preloaded behind us; looked for once.
Ioctl* next_in_order() {
    static constinit std::atomic<void*> known{nullptr};
    void* next = known.load(std::memory_order_relaxed);
    if (next == nullptr) {
        next = resolve::next("ioctl");
        known.store(next, std::memory_order_relaxed);
    }
    return reinterpret_cast<Ioctl*>(next);
}

// In a child of fork the dynamic linker's lock may be taken for ever, by a thread that the child does not have.
[[gnu::constructor]] void find_next() { next_in_order(); }

int next_ioctl(int fd, unsigned long request, void* argument) {
    Ioctl* next = next_in_order();
    if (next != nullptr) return next(fd, request, argument);
    const long result = call(SYS_ioctl, long{fd}, static_cast<long>(request), argument);
    if (result < 0) errno = static_cast<int>(-result);
    return result < 0 ? -1 : static_cast<int>(result);
}

// The one of the library that called: there may be several copies of it in a process.
Door emulated_door(const void* caller) {
    struct Known {
        std::atomic<const void*> caller;
        std::atomic<void*> door;
    };
    static constinit Known known[8]{};
    Known* free = nullptr;
    for (Known& entry : known) {
        const void* found = entry.caller.load(std::memory_order_acquire);
        if (found == caller) {
            if (void* door = entry.door.load(std::memory_order_acquire)) return reinterpret_cast<Door>(door);
        }
        if (found == nullptr && free == nullptr) free = &entry;
    }
    constexpr const char* kName = "runlist_emulated_ioctl";
    void* door = resolve::in_object_of(caller, kName);
    if (door == nullptr) door = resolve::next(kName);
    const void* nobody = nullptr;
    if (door != nullptr && free != nullptr && free->caller.compare_exchange_strong(nobody, caller)) {
        free->door.store(door, std::memory_order_release);
    }
    return reinterpret_cast<Door>(door);
}

}  // namespace
}  // namespace runlist::rm

extern "C" {

[[gnu::visibility("default")]] int ioctl(int fd, unsigned long request, ...) noexcept {
    using namespace runlist::rm;
    std::va_list arguments;
    va_start(arguments, request);
    void* argument = va_arg(arguments, void*);
    va_end(arguments);
    if (_IOC_TYPE(request) != kMagic) return next_ioctl(fd, request, argument);
    return dispatch({.real = next_ioctl, .fd = fd, .request = request, .argument = argument});
}

[[gnu::visibility("default")]] int runlist_emulated_ioctl(int fd, unsigned long request, void* argument) {
    using namespace runlist::rm;
    const Door real = emulated_door(__builtin_return_address(0));
    if (real == nullptr) {
        errno = ENOSYS;
        return -1;
    }
    return dispatch({.real = real, .fd = fd, .request = request, .argument = argument});
}

}  // extern "C"
