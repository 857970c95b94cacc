// What the kernel runs before an ioctl reaches its driver, where the kernel takes such programs (BPF_LSM): a request
// that the policy map forbids its caller ends with EPERM. Whatever cannot be looked up is let through.
//
// A second thread may write another argument after it was read here: what was done then is seen at the exit.
#pragma once

#include "kernel/files.hpp"
#include "kernel/policy.hpp"
#include "kernel/requests.hpp"

namespace runlist::kernel {
namespace {

constexpr int kNotPermitted = -1;  // EPERM

struct Hooked {
    std::uint64_t file;
    std::uint64_t request;
    std::uint64_t argument;
};

ALWAYS bool is_given(const Policy& entry, std::uint32_t minor) {
    return minor >= kMostGpus || (entry.gpus >> minor & 1) != 0;  // beyond them there is the driver's own file
}

ALWAYS int refuse(const Policy& entry, Refusal why, Kind kind, std::uint32_t client, std::uint32_t object,
                  std::uint32_t request) {
    count(Counter::kRefused);
    count_refusal(static_cast<std::uint32_t>(why));
    const std::uint32_t pid = current_pid();
    Process* process = process_of(pid);
    if (process && within_budget(*process, pid))
        tell({What::kRefused, kind, -1, client, static_cast<std::uint32_t>(why), object, request, entry.number});
    return kNotPermitted;
}

ALWAYS int refuse_if_forbidden(const Hooked* hooked, const Settings& set, const Policy& entry) {
    Call call{};
    call.request = static_cast<std::uint32_t>(hooked->request);
    call.argument = hooked->argument;
    if ((call.request & set.mask) != set.value) return 0;
    const auto* shape = find<Shape>(&shapes, call.request);
    if (!shape) return 0;
    if (shape->verb == Verb::kTransfer) {
        if (!unwrap(call, *shape, copy_user)) return 0;
        shape = find<Shape>(&shapes, call.request);
        if (!shape) return 0;
    }
    if (shape->verb != Verb::kAllocate && shape->verb != Verb::kControl) return 0;
    Request request{};
    const std::uint32_t bytes = shape->bytes;
    if (bytes == 0 || bytes > kArgumentBytes ||
        copy_user(request.words, bytes, reinterpret_cast<const void*>(call.argument)) != 0)
        return 0;
    const std::uint32_t number = Request::at(request, shape->class_at);
    std::uint32_t flags = 0;
    Kind kind = Kind::kOther;
    if (shape->verb == Verb::kControl) {
        const auto* known = find<std::uint32_t>(&watched, number);
        if (!known) return 0;
        flags = *known;
    } else {
        kind = kind_of(number);
    }
    ObjectKey object{};
    object.pid = current_pid();
    object.client = Request::at(request, shape->client_at);
    object.object = Request::at(request, shape->object_at);
    const Process* process = kind == Kind::kGroup ? process_of(object.pid) : nullptr;
    const Refusal why = judged(entry, flags, kind, object, process, now_ns());
    return why == Refusal::kNone ? 0 : refuse(entry, why, kind, object.client, object.object, number);
}

}  // namespace

HOOK("file_ioctl") refuse_ioctl(const Hooked* hooked) {
    const Settings* set = configured();
    const Force* now = in_force();
    if (!set || !now) return 0;
    const std::uint32_t pid = current_pid();
    const auto request = static_cast<std::uint32_t>(hooked->request);
    if (request == kProbe) return set->loader == pid ? kNotPermitted : 0;
    if ((now->which & kForceRefuses) == 0) return 0;
    const std::uint32_t device = set->major != 0 ? device_of(hooked->file) : 0;
    const bool a_gpu = set->major != 0 && device >> kMinorBits == set->major;
    if (!a_gpu && (request & set->mask) != set->value) return 0;
    if (is_exempt(pid) || !is_drivers(*set, hooked->file)) return 0;
    const Policy* entry = entry_of_caller();
    if (!entry || (entry->flags & (kRefuseSlices | kRefuseGroups | kRefuseGpus)) == 0) return 0;
    if (a_gpu && (entry->flags & kRefuseGpus) != 0 && !is_given(*entry, device & ((1u << kMinorBits) - 1)))
        return refuse(*entry, Refusal::kGpu, Kind::kOther, 0, 0, request);
    return refuse_if_forbidden(hooked, *set, *entry);
}

}  // namespace runlist::kernel
