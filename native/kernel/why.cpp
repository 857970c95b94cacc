// What the kernel runs while somebody asks why a process is late (`runlist trace --why`), for that process alone: who
// has the cores that its threads want, where they block, what interrupts them, and their calls of the driver's library.
//
// A thread is ours by its process' number where it runs, and by the map of threads where another one runs.
#include "kernel/helpers.hpp"
#include "protocol/why.autogen.hpp"

extern "C" {
extern char settings, threads, cores, interrupts, stacks, counters, events;  // planes/kernel/watching.py makes them
extern char at_sched_process_fork_child_pid;  // no map but a number, which it finds in tracefs
}

namespace runlist::why {
namespace {

#define ALWAYS static inline __attribute__((always_inline))
#define HELPER(number, result, name, ...) static result (*const name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))(number)
HELPER(8, std::uint32_t, current_core);
HELPER(27, long, stack_number, const void* context, const void* map, std::uint64_t flags);
HELPER(174, std::uint64_t, cookie_of, const void* context);
#undef HELPER
using kernel::current_name;
using kernel::current_process_and_thread;
using kernel::erase;
using kernel::kIfMissing;
using kernel::kOthersToo;
using kernel::lookup;
using kernel::now_ns;
using kernel::read_user;
using kernel::ring_reserve;
using kernel::ring_submit;
using kernel::update;

constexpr std::uint64_t kCompareByHash = 1 << 9;  // a flag of `stack_number`
constexpr std::uint32_t kNoStack = ~0u;

template <typename Value, typename Key>
ALWAYS Value* find(const void* map, const Key& key) {
    return static_cast<Value*>(lookup(map, &key));
}

ALWAYS void count(Counter which) {
    if (auto* counter = find<std::uint64_t>(&counters, static_cast<std::uint32_t>(which))) *counter += 1;  // per CPU
}

ALWAYS std::uint32_t watched_pid() {
    const auto* set = find<Settings>(&settings, std::uint32_t{0});
    return set ? set->pid : 0;
}

// The current thread, where it is of the process; else 0.
ALWAYS std::uint32_t own_thread() {
    const std::uint64_t who = current_process_and_thread();
    const std::uint32_t pid = watched_pid();
    return pid != 0 && pid == static_cast<std::uint32_t>(who >> 32) ? static_cast<std::uint32_t>(who) : 0;
}

ALWAYS Thread* thread_of(std::uint32_t tid) {
    if (auto* known = find<Thread>(&threads, tid)) return known;
    Thread made{};
    if (update(&threads, &tid, &made, kIfMissing) != 0) count(Counter::kFull);
    return find<Thread>(&threads, tid);
}

ALWAYS void copy_name(std::uint8_t (&to)[kNameBytes], const std::uint8_t* from) {
    for (std::uint32_t at = 0; at < kNameBytes; ++at) to[at] = from[at];
}

ALWAYS Event* begin(What what, std::uint32_t tid) {
    auto* event = static_cast<Event*>(ring_reserve(&events, sizeof(Event), 0));
    if (!event) {
        count(Counter::kDropped);
        return nullptr;
    }
    event->time_ns = now_ns();
    event->what = what;
    event->tid = tid;
    event->core = current_core();
    event->other = 0;
    event->value = 0;
    event->detail = 0;
    event->state = 0;
    event->unused = 0;
    return event;
}

ALWAYS void finish(Event* event) {
    ring_submit(event, 0);
    count(Counter::kEvents);
}

// ---- cores
// -------------------------------------------------------------------------------------------------------------

struct Switch {
    std::uint64_t common;
    std::uint8_t prev_name[kNameBytes];
    std::uint32_t prev_tid, prev_priority;
    std::uint64_t prev_state;
    std::uint8_t next_name[kNameBytes];
    std::uint32_t next_tid, next_priority;
};

struct Wakeup {
    std::uint64_t common;
    std::uint8_t name[kNameBytes];
    std::uint32_t tid, priority, core;
};

ALWAYS bool can_go_on(std::uint64_t state) { return state == 0 || state == kRunnablePreempted; }

ALWAYS void stop_waiting(Thread& thread) {
    const std::uint32_t was = thread.waits_for;
    if (was == 0) return;
    thread.waits_for = 0;
    if (auto* core = find<Core>(&cores, was - 1)) __sync_fetch_and_add(&core->waits, -1);
}

ALWAYS void wait_for(Thread& thread, std::uint32_t number) {
    stop_waiting(thread);
    auto* core = find<Core>(&cores, number);
    if (!core) return;
    __sync_fetch_and_add(&core->waits, 1);
    thread.waits_for = number + 1;
}

// False where it was away for too short a time to be told.
ALWAYS bool tell_of_leaving(Thread& thread, std::uint32_t tid) {
    const std::uint64_t since = thread.left_ns;
    if (since == 0) return true;
    thread.left_ns = 0;
    if (now_ns() - since < kLeastWaitNs) return false;
    Event* event = begin(What::kOut, tid);
    if (!event) return true;
    event->time_ns = since;
    event->core = thread.core;
    event->other = thread.other;
    event->detail = kNoStack;
    event->state = kRunnablePreempted;
    copy_name(event->name, thread.name);
    finish(event);
    return true;
}

// Some kernels do not tell of every switch. Who is on a core again has left it all the same, and waits no more.
ALWAYS void is_back(Thread& thread, std::uint32_t tid) {
    if (thread.left_ns == 0) return;
    stop_waiting(thread);
    tell_of_leaving(thread, tid);
}

// Whether a thread can go on is told when it got a core again: most that yield theirs get it back at once.
ALWAYS void left(const Switch* context) {
    const auto tid = context->prev_tid;
    Thread* thread = thread_of(tid);
    if (!thread) return;
    is_back(*thread, tid);
    const std::uint64_t state = context->prev_state;
    if (can_go_on(state)) {
        wait_for(*thread, current_core());
        thread->left_ns = now_ns();
        thread->other = context->next_tid;
        thread->core = current_core();
        copy_name(thread->name, context->next_name);
        return;
    }
    std::uint32_t stack = kNoStack;
    const long number = stack_number(context, &stacks, kCompareByHash);
    if (number >= 0) stack = static_cast<std::uint32_t>(number);
    Event* event = begin(What::kOut, tid);
    if (!event) return;
    event->other = context->next_tid;
    event->value = thread->fault;
    event->detail = stack;
    event->state = static_cast<std::uint32_t>(state);
    copy_name(event->name, context->next_name);
    finish(event);
}

ALWAYS void got(const Switch* context, Thread& thread) {
    thread.fault = 0;
    stop_waiting(thread);
    if (!tell_of_leaving(thread, context->next_tid)) return;
    Event* event = begin(What::kIn, context->next_tid);
    if (!event) return;
    event->other = context->prev_tid;
    copy_name(event->name, context->prev_name);
    finish(event);
}

ALWAYS void woken(const Wakeup* context) {
    const auto tid = context->tid;
    Thread* thread = find<Thread>(&threads, tid);
    if (!thread) return;
    const std::uint32_t number = context->core;
    wait_for(*thread, number);
    Event* event = begin(What::kWake, tid);
    if (!event) return;
    event->core = number;
    // A timer that goes off is nobody's doing who runs there.
    const auto* timer = find<std::uint64_t>(&interrupts, static_cast<std::uint32_t>(Source::kTimer));
    event->value = timer && *timer != 0 ? 0 : static_cast<std::uint32_t>(current_process_and_thread());
    const auto* core = find<Core>(&cores, number);
    if (core) {
        event->other = core->tid;
        copy_name(event->name, core->name);
    } else {
        for (auto& letter : event->name) letter = 0;
    }
    finish(event);
}

// ---- interrupts
// --------------------------------------------------------------------------------------------------------

ALWAYS void interrupted(Source source) {
    if (own_thread() == 0) return;
    if (auto* began = find<std::uint64_t>(&interrupts, static_cast<std::uint32_t>(source))) *began = now_ns();
}

ALWAYS void went_on(Source source, std::uint32_t number) {
    auto* began = find<std::uint64_t>(&interrupts, static_cast<std::uint32_t>(source));
    if (!began || *began == 0) return;
    const std::uint64_t since = *began;
    *began = 0;
    const std::uint32_t tid = own_thread();
    const std::uint64_t took = now_ns() - since;
    if (tid == 0 || took < kLeastInterruptNs) return;
    if (Thread* thread = find<Thread>(&threads, tid)) is_back(*thread, tid);
    Event* event = begin(What::kInterrupt, tid);
    if (!event) return;
    event->other = number;
    event->value = took;
    event->detail = static_cast<std::uint32_t>(source);
    for (auto& letter : event->name) letter = 0;
    finish(event);
}

struct Interrupt {
    std::uint64_t common;
    std::uint32_t number;
};

// ---- calls
// -------------------------------------------------------------------------------------------------------------

#ifdef RUNLIST_AARCH64
struct Registers {
    std::uint64_t general[31], stack;
};
#define ARGUMENTS(context)                                          \
    {context->general[0], context->general[1], context->general[2], \
     context->general[3], context->general[4], context->general[5]}
constexpr std::uint64_t kSixthBehind = 2;  // of the arguments behind the sixth, so many are in registers, too
constexpr std::uint64_t kFirstOnStack = 0;
ALWAYS std::uint64_t result_of(const volatile Registers* context) { return context->general[0]; }
#else
struct Registers {
    std::uint64_t r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, original_ax, ip, cs, flags, stack;
};
#define ARGUMENTS(context) {context->di, context->si, context->dx, context->cx, context->r8, context->r9}
constexpr std::uint64_t kSixthBehind = 0;
constexpr std::uint64_t kFirstOnStack = 8;  // behind the address to return to
ALWAYS std::uint64_t result_of(const volatile Registers* context) { return context->ax; }
#endif
constexpr std::uint32_t kArguments = 6;

// The argument of interest: its place is counted from 1; 0: there is none. All registers are read first: the kernel
// takes no address in them that is chosen while the program runs.
ALWAYS std::uint64_t argument_of(const volatile Registers* context, std::uint32_t place) {
    if (place == 0) return 0;
    const std::uint64_t given[kArguments] = ARGUMENTS(context);
    const std::uint64_t stack = context->stack;
    std::uint64_t value = 0;
    std::uint64_t at = 0;
    if (place >= kInStructure) {
        at = given[0] + 8 * (place - kInStructure);
    } else if (place <= kArguments) {
        for (std::uint32_t each = 0; each < kArguments; ++each)
            if (place == each + 1) value = given[each];
        return value;
    } else {
        at = stack + kFirstOnStack + 8 * (place - 1 - kArguments - kSixthBehind);
    }
    if (read_user(&value, sizeof value, reinterpret_cast<const void*>(at)) != 0) return 0;
    return value;
}

ALWAYS void called(const Registers* context, std::uint32_t tid) {
    count(Counter::kCalls);
    const std::uint64_t cookie = cookie_of(context);
    Thread* thread = thread_of(tid);
    if (!thread) return;
    is_back(*thread, tid);
    const std::uint64_t argument = argument_of(context, static_cast<std::uint32_t>(cookie >> kPlaceShift) & 0xFF);
    if ((cookie & kFolds) != 0) {
        const std::uint64_t now = now_ns();
        const bool folds = now - thread->launched_ns < kFoldNs && thread->stream == argument;
        thread->launched_ns = now;
        thread->stream = argument;
        if (folds) {
            thread->folded += 1;
            return;
        }
    } else {
        thread->launched_ns = 0;
    }
    Event* event = begin(What::kCall, tid);
    if (!event) return;
    event->value = argument;
    event->detail = static_cast<std::uint32_t>(cookie) & 0xFFFF;
    event->state = thread->folded;
    thread->folded = 0;
    for (auto& letter : event->name) letter = 0;
    finish(event);
}

ALWAYS void returned(const Registers* context, std::uint32_t tid) {
    count(Counter::kCalls);
    Event* event = begin(What::kReturn, tid);
    if (!event) return;
    event->value = result_of(context);
    event->detail = static_cast<std::uint32_t>(cookie_of(context)) & 0xFFFF;
    for (auto& letter : event->name) letter = 0;
    finish(event);
}

}  // namespace

// Who had a core is told when it leaves it, to those who waited for it meanwhile.
ALWAYS void tell_of_run(const Core& core, std::uint64_t now) {
    if (core.waits == 0 || core.since_ns == 0 || now - core.since_ns < kLeastRunNs) return;
    Event* event = begin(What::kRuns, 0);
    if (!event) return;
    event->time_ns = core.since_ns;
    event->value = now - core.since_ns;
    event->other = core.tid;
    copy_name(event->name, core.name);
    finish(event);
}

PROGRAM("sched/sched_switch") switched(const Switch* context) {
    const std::uint32_t pid = watched_pid();
    if (pid == 0) return kOthersToo;
    count(Counter::kSwitches);
    const std::uint32_t number = current_core(), next_tid = context->next_tid;
    const std::uint64_t now = now_ns();
    auto* core = find<Core>(&cores, number);
    if (core) tell_of_run(*core, now);
    if (static_cast<std::uint32_t>(current_process_and_thread() >> 32) == pid) left(context);
    Thread* next = find<Thread>(&threads, next_tid);
    if (next) got(context, *next);
    if (!core) return kOthersToo;
    core->tid = next_tid;
    core->since_ns = now;
    copy_name(core->name, context->next_name);
    return kOthersToo;
}

PROGRAM("sched/sched_wakeup") woke(const Wakeup* context) {
    woken(context);
    return kOthersToo;
}

PROGRAM("sched/sched_wakeup_new") woke_first(const Wakeup* context) {
    woken(context);
    return kOthersToo;
}

// Names of threads were parts of this tracepoint once, and are behind it since: the loader says where the child's
// number is. The verifier takes no place that was reckoned, so that there is an instruction for each, of which it sees
// one.
constexpr std::uint64_t kChildWithNames = 44, kChild = 20;

PROGRAM("sched/sched_process_fork") forked(const void* context) {
    if (own_thread() == 0) return kOthersToo;
    std::uint64_t child = 0;
    if (reinterpret_cast<std::uint64_t>(&at_sched_process_fork_child_pid) == kChildWithNames)
        asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(child) : "r"(context), "i"(kChildWithNames));
    else
        asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(child) : "r"(context), "i"(kChild));
    thread_of(static_cast<std::uint32_t>(child));  // a process of its own is let go of where it first ends
    return kOthersToo;
}

PROGRAM("sched/sched_process_exit") ended(const void*) {
    const auto tid = static_cast<std::uint32_t>(current_process_and_thread());
    if (auto* thread = find<Thread>(&threads, tid)) stop_waiting(*thread);
    erase(&threads, &tid);
    return kOthersToo;
}

struct Fault {
    std::uint64_t common, address;
};

PROGRAM("exceptions/page_fault_user") faulted(const Fault* context) {
    const std::uint32_t tid = own_thread();
    if (tid == 0) return kOthersToo;
    if (auto* thread = thread_of(tid)) thread->fault = context->address;
    return kOthersToo;
}

PROGRAM("irq/irq_handler_entry") device_entry(const Interrupt*) {
    interrupted(Source::kDevice);
    return kOthersToo;
}

PROGRAM("irq/irq_handler_exit") device_exit(const Interrupt* context) {
    went_on(Source::kDevice, context->number);
    return kOthersToo;
}

PROGRAM("irq/softirq_entry") soft_entry(const Interrupt*) {
    interrupted(Source::kSoft);
    return kOthersToo;
}

PROGRAM("irq/softirq_exit") soft_exit(const Interrupt* context) {
    went_on(Source::kSoft, context->number);
    return kOthersToo;
}

PROGRAM("irq_vectors/local_timer_entry") timer_entry(const Interrupt*) {
    interrupted(Source::kTimer);
    return kOthersToo;
}

PROGRAM("irq_vectors/local_timer_exit") timer_exit(const Interrupt* context) {
    went_on(Source::kTimer, context->number);
    return kOthersToo;
}

extern "C" __attribute__((section("uprobe/call"), used)) int call(const Registers* context) {
    if (const std::uint32_t tid = own_thread()) called(context, tid);
    return 0;
}

extern "C" __attribute__((section("uprobe/return"), used)) int come_back(const Registers* context) {
    if (const std::uint32_t tid = own_thread()) returned(context, tid);
    return 0;
}

}  // namespace runlist::why

// As in capture.cpp.
extern "C" __attribute__((section("license"), used)) const char licence[] = "GPL and additional rights";
