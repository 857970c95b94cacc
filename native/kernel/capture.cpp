// What the kernel runs at the tracepoints of ioctl and close, and where processes end or run other programs.
//
// A request is recognised by its whole number, and believed only once the driver has answered it with success: its
// argument is read at the exit. Whose file it was is for the daemon to find out, which asks the driver itself: nothing
// happens because of an event alone. What the policy map forbids is refused before (kernel/refusing.hpp).
#include "kernel/common.hpp"
#include "kernel/files.hpp"
#include "kernel/policy.hpp"
#include "kernel/refusing.hpp"
#include "kernel/requests.hpp"

namespace runlist::kernel {
namespace {

// ---- objects
// -----------------------------------------------------------------------------------------------------------

ALWAYS void enter_group(const ObjectKey& key, std::int32_t fd, Process& process) {
    const std::uint64_t who = current_process_and_thread();
    Group group{};
    group.cgroup = current_cgroup();
    group.made_ns = now_ns();
    group.tid = static_cast<std::uint32_t>(who);
    group.uid = static_cast<std::uint32_t>(current_user_and_group());
    group.fd = fd;
    current_name(group.name, sizeof group.name);
    group.owner = current_owner();
    keep_of<&Owner::groups>(kMostGroups, &groups, key, group);
    __sync_fetch_and_add(&process.groups, 1);
}

ALWAYS std::uint64_t made_at(ObjectKey key, std::uint32_t number) {
    key.object = number;
    const auto* object = find<Object>(&objects, key);
    return object ? object->made_ns : 0;
}

// Is it what has this number now? It may have gone with its parent, and that with its own.
ALWAYS bool is_there(ObjectKey key, const Object& object) {
    if (object.kind == Kind::kClient) return true;
    if (made_at(key, object.parent) != object.parent_ns) return false;
    key.object = object.parent;
    const auto* parent = find<Object>(&objects, key);
    return !parent || parent->kind == Kind::kClient || made_at(key, parent->parent) == parent->parent_ns;
}

ALWAYS void count_in(Object& object, std::int32_t by) {
    if (by > 0 || object.groups >= static_cast<std::uint32_t>(-by)) __sync_fetch_and_add(&object.groups, by);
}

// A group goes with its client and with its device: they count those that they take with them.
ALWAYS void count_group(ObjectKey key, std::uint32_t parent, std::int32_t by) {
    key.object = key.client;
    auto* client = find<Object>(&objects, key);
    if (client && client->kind == Kind::kClient) count_in(*client, by);
    key.object = parent;
    auto* device = find<Object>(&objects, key);
    if (device && device->kind == Kind::kDevice) count_in(*device, by);
}

ALWAYS void fewer_groups(std::uint32_t pid, std::uint32_t number) {
    auto* process = find<Process>(&processes, pid);
    if (process && process->groups >= number)
        __sync_fetch_and_add(&process->groups, -static_cast<std::int32_t>(number));
}

// A channel counts for its group, an engine for its channel's.
ALWAYS void enter_below(ObjectKey key, const Object& object) {
    key.object = object.parent;
    if (object.kind != Kind::kChannel) {
        const auto* channel = find<Object>(&objects, key);
        if (!channel) return;
        key.object = channel->parent;
    }
    auto* group = find<Group>(&groups, key);
    if (!group) return;
    if (object.kind == Kind::kChannel) __sync_fetch_and_add(&group->channels, 1);
    if (object.kind == Kind::kCompute) __sync_fetch_and_add(&group->compute, 1);
    if (object.kind == Kind::kCopy) __sync_fetch_and_add(&group->copy, 1);
}

ALWAYS void enter(const ObjectKey& key, Object& object, const Request& request, Process& process) {
    object.owner = current_owner();
    object.made_ns = now_ns();
    object.parent_ns = object.kind == Kind::kClient ? 0 : made_at(key, object.parent);
    keep_of<&Owner::objects>(kMostObjects, &objects, key, object);
    FileKey file{};
    file.pid = key.pid;
    file.fd = request.fd;
    File of{};
    of.owner = object.owner;
    of.client = key.client;
    of.file = request.file;
    keep_of<&Owner::files>(kMostFiles, &files, file, of);
    if (object.kind == Kind::kGroup) {
        enter_group(key, request.fd, process);
        count_group(key, object.parent, 1);
    }
    if (object.kind > Kind::kGroup) enter_below(key, object);
}

// ---- requests

// The GPU of a new device, by the number that its maker gave for it. Its memory may say anything by now.
ALWAYS std::uint32_t gpu_asked(const Request& request) {
    const std::uint8_t place = request.shape->params_at;
    if (place == kNowhere) return 0;
    const std::uint64_t low = Request::at(request, place), high = Request::at(request, place + 4);
    std::uint32_t number = 0;
    return read_user(&number, sizeof number, reinterpret_cast<const void*>(high << 32 | low)) == 0 ? number + 1 : 0;
}

// The GPU of a new group, which is below a device.
ALWAYS std::uint32_t gpu_of(ObjectKey key, std::uint32_t parent) {
    key.object = parent;
    const auto* device = find<Object>(&objects, key);
    return device && device->kind == Kind::kDevice ? device->gpu : 0;
}

ALWAYS void allocated(const Request& request, std::uint32_t pid) {
    const Shape& shape = *request.shape;
    const std::uint32_t class_ = Request::at(request, shape.class_at);
    const Kind kind = kind_of(class_);
    if (kind == Kind::kOther) return;
    Process* process = process_of(pid);
    if (process &&
        !(kind == Kind::kGroup ? within_budget<&Budget::groups>(*process, pid) : within_budget(*process, pid)))
        return;
    ObjectKey key{};
    key.pid = pid;
    key.object = Request::at(request, shape.object_at);
    key.client = kind == Kind::kClient ? key.object : Request::at(request, shape.client_at);
    Object object{};
    object.parent = Request::at(request, shape.parent_at);
    object.kind = kind;
    object.gpu = kind == Kind::kDevice ? gpu_asked(request) : 0;
    const Policy* entry = kind == Kind::kGroup ? entry_of_caller() : nullptr;
    if (entry && !is_exempt(pid) && judged(*entry, 0, kind, key, process, request.began_ns) != Refusal::kNone)
        forbidden({What::kForbidden, kind, request.fd, key.client, static_cast<std::uint32_t>(Refusal::kGroups),
                   key.object, class_, entry->number});
    if (!process) return;
    enter(key, object, request, *process);
    tell({What::kMade, kind, request.fd, key.client, object.parent, key.object, class_, entry ? entry->number : 0,
          kind == Kind::kGroup ? gpu_of(key, object.parent) : 0});
}

// Of what goes, too, only so much is told: the daemon finds the rest by looking.
ALWAYS bool may_tell(std::uint32_t pid) {
    auto* process = find<Process>(&processes, pid);
    return !process || within_budget(*process, pid);
}

ALWAYS void freed(const Request& request, std::uint32_t pid) {
    ObjectKey key{};
    key.pid = pid;
    key.client = Request::at(request, request.shape->client_at);
    key.object = Request::at(request, request.shape->object_at);
    const auto* object = find<Object>(&objects, key);
    if (!object) return;
    const Object was = *object;
    const bool there = is_there(key, was);
    take_of<&Owner::objects>(was.owner, &objects, key);
    if (was.kind == Kind::kGroup) {
        take_of<&Owner::groups>(was.owner, &groups, key);
        if (there) {
            fewer_groups(pid, 1);
            count_group(key, was.parent, -1);
        }
    }
    if (there && was.groups != 0) {
        fewer_groups(pid, was.groups);
        if (was.kind == Kind::kDevice) count_group(key, was.parent, -static_cast<std::int32_t>(was.groups));
    }
    if (may_tell(pid)) tell({What::kFreed, was.kind, request.fd, key.client, was.parent, key.object, 0, 0});
}

ALWAYS void duplicated(const Request& request, std::uint32_t pid) {
    const Shape& shape = *request.shape;
    ObjectKey key{};
    key.pid = pid;
    key.client = Request::at(request, shape.source_client_at);
    key.object = Request::at(request, shape.source_at);
    const auto* source = find<Object>(&objects, key);
    if (!source) return;
    Process* process = process_of(pid);
    if (!process || !within_budget(*process, pid)) return;
    Object object{};
    object.kind = source->kind;
    object.gpu = source->gpu;
    object.parent = Request::at(request, shape.parent_at);
    const std::uint32_t first = key.object;
    key.client = Request::at(request, shape.client_at);
    key.object = Request::at(request, shape.object_at);
    enter(key, object, request, *process);
    tell({What::kDuplicated, object.kind, request.fd, key.client, first, key.object, 0, 0});
}

ALWAYS void controlled(const Request& request, std::uint32_t pid, bool failed) {
    const Shape& shape = *request.shape;
    const std::uint32_t command = Request::at(request, shape.class_at);
    const auto* flags = find<std::uint32_t>(&watched, command);
    if (!flags || (failed && (*flags & kWatchPartly) == 0)) return;
    Process* process = process_of(pid);
    if (!process) return;
    if (!((*flags & kWatchOwn) != 0 ? within_budget<&Budget::own>(*process, pid) : within_budget(*process, pid)))
        return;
    ControlKey key{};
    key.pid = pid;
    key.command = command;
    if (auto* known = find<std::uint64_t>(&controls, key))
        __sync_fetch_and_add(known, 1);
    else
        keep(&controls, key, std::uint64_t{1});
    if (is_exempt(pid)) return;
    ObjectKey object{};
    object.pid = pid;
    object.client = Request::at(request, shape.client_at);
    object.object = Request::at(request, shape.object_at);
    if ((*flags & kWatchEvent) != 0)
        tell({What::kControlled, Kind::kOther, request.fd, object.client, *flags, object.object, command, 0});
    if ((*flags & kWatchOwn) == 0) return;
    const Policy* entry = entry_of_caller();
    if (entry && judged(*entry, *flags, Kind::kOther, object, process, request.began_ns) != Refusal::kNone)
        forbidden({What::kForbidden, Kind::kOther, request.fd, object.client,
                   static_cast<std::uint32_t>(Refusal::kSlices), object.object, command, entry->number});
}

// ---- calls
// -------------------------------------------------------------------------------------------------------------

ALWAYS Call* place_of(std::uint64_t who) {
    return find<Call>(&places, static_cast<std::uint32_t>(who) & (kPlaces - 1));
}

// EFAULT: the caller's memory took no answer. What was asked for may be done by then, whatever stands there.
constexpr std::int64_t kNotTaken = -14;

ALWAYS std::uint64_t* spilled_calls() { return find<std::uint64_t>(&spilled, std::uint32_t{0}); }

// The kernel leaves a program out where another has its core: the end of what this thread began before may be unknown.
ALWAYS void remember(const Call& call) {
    Call* place = place_of(call.who);
    if (!place) return;
    if (place->who == call.who || __sync_val_compare_and_swap(&place->who, 0, call.who) == 0) {
        place->argument = call.argument;
        place->request = call.request;
        place->fd = call.fd;
        place->began_ns = call.began_ns;
        place->file = call.file;
        return;
    }
    auto* many = spilled_calls();
    const bool is_new = !find<Call>(&calls, call.who);
    if (update(&calls, &call.who, &call, 0) != 0)
        count(Counter::kFull);
    else if (many && is_new)
        __sync_fetch_and_add(many, 1);
}

// Takes what a thread has begun. Most have begun nothing, and are to know that quickly.
ALWAYS bool recall(std::uint64_t who, Call& call) {
    Call* place = place_of(who);
    if (!place) return false;
    if (place->who == who) {
        call = *place;
        place->who = 0;
        return true;
    }
    auto* count = spilled_calls();
    if (!count || *count == 0) return false;
    const auto* begun = find<Call>(&calls, who);
    if (!begun) return false;
    call = *begun;
    if (erase(&calls, &who) == 0) __sync_fetch_and_add(count, -1);
    return true;
}

// In what a process asked much may be hidden: that it asked is known. By when, and not by how often: who has its entry
// forgotten, because many others ask, would be as often at the same count.
ALWAYS void note_asking(std::uint32_t pid, std::uint64_t now) {
    if (auto* known = find<std::uint64_t>(&asked, pid))
        *known = now;
    else
        keep(&asked, pid, now);
}

}  // namespace

PROGRAM("syscalls/sys_enter_ioctl") enter_ioctl(const Entering* entering) {
    Call call{};
    call.request = static_cast<std::uint32_t>(entering->arguments[1]);
    const Settings* set = configured();
    if (!set || (call.request & set->mask) != set->value) return kOthersToo;
    const auto* shape = find<Shape>(&shapes, call.request);
    call.who = current_process_and_thread();
    if (!shape || set->own == static_cast<std::uint32_t>(call.who >> 32)) return kOthersToo;
    call.fd = static_cast<std::int32_t>(entering->arguments[0]);
    if (set->files != 0) {
        call.file = file_of(call.fd);
        if (!is_drivers(*set, call.file)) return kOthersToo;
    }
    call.argument = entering->arguments[2];
    call.began_ns = now_ns();
    if (shape->verb == Verb::kTransfer) {
        if (!unwrap(call, *shape, read_user)) return kOthersToo;
        const auto* inner = find<Shape>(&shapes, call.request);
        if (!inner || inner->verb == Verb::kTransfer) return kOthersToo;
    }
    remember(call);
    return kOthersToo;
}

PROGRAM("syscalls/sys_exit_ioctl") exit_ioctl(const Leaving* leaving) {
    const std::uint64_t who = current_process_and_thread();
    Call call;
    if (!recall(who, call)) return kOthersToo;
    if (leaving->result != 0 && leaving->result != kNotTaken) return kOthersToo;
    count(Counter::kSeen);
    const auto pid = static_cast<std::uint32_t>(who >> 32);
    note_asking(pid, now_ns());
    Request request{};
    request.shape = find<Shape>(&shapes, call.request);
    if (!request.shape) return kOthersToo;
    request.fd = call.fd;
    request.file = call.file;
    request.began_ns = call.began_ns;
    const std::uint32_t bytes = request.shape->bytes;
    if (bytes == 0 || bytes > kArgumentBytes ||
        read_user(request.words, bytes, reinterpret_cast<const void*>(call.argument)) != 0) {
        count(Counter::kUnread);
        return kOthersToo;
    }
    // Where there is no answer, what may have been made counts, and what may have been freed counts on.
    const bool failed = leaving->result == 0 && Request::at(request, request.shape->status_at) != 0;
    const bool nothing = leaving->result == 0 ? failed : request.shape->verb == Verb::kFree;
    if (nothing && request.shape->verb != Verb::kControl) return kOthersToo;
    switch (request.shape->verb) {
        case Verb::kAllocate:
            allocated(request, pid);
            break;
        case Verb::kFree:
            freed(request, pid);
            break;
        case Verb::kDuplicate:
            duplicated(request, pid);
            break;
        case Verb::kControl:
            controlled(request, pid, failed);
            break;
        case Verb::kTransfer:
            break;
    }
    return kOthersToo;
}

PROGRAM("syscalls/sys_enter_close") enter_close(const Entering* entering) {
    FileKey key{};
    key.pid = current_pid();
    if (!find<Process>(&processes, key.pid)) return kOthersToo;
    key.fd = static_cast<std::int32_t>(entering->arguments[0]);
    const auto* file = find<File>(&files, key);
    const Settings* set = configured();
    if (!file || !set) return kOthersToo;
    const File of = *file;
    take_of<&Owner::files>(of.owner, &files, key);
    ObjectKey object{};
    object.pid = key.pid;
    object.client = object.object = of.client;
    if (auto* kept = find<Object>(&objects, object); kept && kept->groups != 0 && is_last(*set, key.fd, of.file))
        fewer_groups(key.pid, __sync_fetch_and_and(&kept->groups, 0));
    if (may_tell(key.pid)) tell({What::kClosed, Kind::kOther, key.fd, of.client, 0, 0, 0, 0});
    return kOthersToo;
}

PROGRAM("sched/sched_process_exec") executed(const void*) {
    const std::uint32_t pid = current_pid();
    auto* process = find<Process>(&processes, pid);
    if (!process) return kOthersToo;
    const Settings* set = configured();
    if (set && !has_drivers(*set)) process->groups = 0;
    tell({What::kExecuted, Kind::kOther, -1, 0, 0, 0, 0, 0});
    return kOthersToo;
}

PROGRAM("sched/sched_process_exit") ended(const void*) {
    const std::uint64_t who = current_process_and_thread();
    Call unfinished;
    recall(who, unfinished);
    const auto pid = static_cast<std::uint32_t>(who >> 32);
    const auto* process = find<Process>(&processes, pid);
    const Settings* set = configured();
    if (!process || !set || !is_last_thread(*set, who)) return kOthersToo;
    MemberKey member{};
    member.cgroup = process->cgroup;
    member.pid = pid;
    const std::uint64_t owner = process->owner;
    erase(&members, &member);
    take_of<&Owner::processes>(owner, &processes, pid);
    tell({What::kEnded, Kind::kOther, -1, 0, 0, 0, 0, 0});
    return kOthersToo;
}

}  // namespace runlist::kernel

// Some of the kernel's helpers are for programs under a licence that goes with its own. These files are under
// Apache-2.0, as all of Runlist, and may be taken under GPL-2.0 as well (docs/decisions/0031-kernel-plane.md).
extern "C" __attribute__((section("license"), used)) const char licence[] = "GPL and additional rights";
