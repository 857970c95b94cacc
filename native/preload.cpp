// Puts the parts together when the library comes into a process.
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "activity/activity.hpp"
#include "arrivals/arrivals.hpp"
#include "cap/context.hpp"
#include "core/guest.hpp"
#include "core/say.hpp"
#include "core/text.hpp"
#include "environment/options.hpp"
#include "hooks/entries.hpp"
#include "hooks/launch.hpp"
#include "hooks/own_limits.hpp"
#include "hooks/touch.hpp"
#include "operations/engine.hpp"
#include "region/find.hpp"
#include "region/quota.hpp"
#include "region/region.hpp"
#include "resolve/copies.hpp"
#include "resolve/elf.hpp"
#include "rm/door.hpp"
#include "tenant/join.hpp"
#include "tenant/tenant.hpp"

namespace runlist {
namespace {

using environment::Options;
using region::Fault;

constexpr long kRefused = 126;  // as a shell says of what it found and could not run

constinit std::atomic<bool> started{false};
constinit std::atomic<bool> scheduling{false};  // operation by operation: hooks are given out without limits, too

// Goes on without limits, or not at all where that was asked for.
template <typename... Words>
void fail(const Options& options, Words... words) {
    if (!options.expects_limits) return;
    say(options.strict ? Level::kError : Level::kWarning, words...,
        options.strict ? "; not started (RUNLIST_STRICT)" : "; going on without limits");
    if (options.strict) call(SYS_exit_group, kRefused);
}

void read_options(Options& options) {
    environment::Complaints complaints;
    if (::getauxval(AT_SECURE) == 0) environment::read(::environ, options, complaints);
    if (options.disabled) return;
    set_say_level(options.say_level);
    for (int i = 0; i < complaints.count; ++i) {
        const auto& one = complaints.list[i];
        const bool about_limits = environment::is_about_limits(one.bad);
        if (about_limits && options.in_tree()) continue;  // the tree has its own
        Text<64> name;
        name.add({one.variable, one.name_length});
        const Quoted value{one.variable + one.name_length + 1};
        const char* what = environment::describe(one.bad);
        if (options.strict && about_limits) fail(options, name.text, "=", value, " ", what);
        say(Level::kWarning, name.text, "=", value, " ", what);
    }
}

// The whole of a GPU is no cap on it, but has launches looked at, for the GPUs that have one.
region::Limits limits_of(const Options& options) {
    const std::uint64_t cap = options.has_caps() ? std::min(options.cap, cap::kWhole) : region::kNoLimit;
    return {.memory = options.memory, .cap = cap, .strict = options.strict};
}

cap::Account account_of(const std::uint8_t (&uuid)[16]) {
    const int index = region::quota.device(uuid);
    if (index < 0) return {};
    region::Device& device = region::quota.region().device(index);
    region::Slot* slot = region::quota.own_slot();
    return {.cap = &device.cap,
            .next_turn = &device.next_turn,
            .gpu_ns = slot != nullptr ? &slot->use[index].gpu_ns : nullptr};
}

void limit(const Options& options) {
    if (!options.has_limits() && !options.in_tree()) return;
    region::Region region;
    static constinit region::Path path;
    const Fault fault = region::find(options, limits_of(options), path, region);
    if (fault != Fault::kNone) return fail(options, "region ", Quoted{path.text}, " ", region::describe(fault));
    region::Region::remember(path.text);
    if (region.header().by_hand != 0) hooks::set_own_limits(options);
    region::quota.start(region);
    cap::start(region.header().cap, account_of);
}

constinit char page[environment::kPathBytes] = "";  // that processes share for their operations; "" for none
constinit int page_client = 0;
constinit std::atomic<bool> joined{false};

// Once this process does something with the GPU: a shell that starts one that does is no client.
void join_page() {
    if (page[0] != '\0' && !joined.exchange(true)) operations::start_process(page, page_client);
}

// The driver's libraries are here.
void hooked() {
    hooks::say_enforced();
    join_page();
}

// Reads the options and opens the region, once.
void start() {
    if (started.load(std::memory_order_relaxed) || started.exchange(true)) return;
    static constinit Options options;  // once in a process, and its stack may be small
    read_options(options);
    rm::watching.store(!options.disabled, std::memory_order_relaxed);
    if (options.disabled) return;
    limit(options);
    if (options.operations[0] == '\0') return;
    scheduling.store(true, std::memory_order_relaxed);
    operations::set_bound(options.operations_bound_ns);
    if (options.operations[0] != '/') return;
    std::copy(std::begin(options.operations), std::end(options.operations), page);
    page_client = options.operations_client;
}

// Whether programs are to get our hooks: not if nothing was asked for.
bool is_hooking() {
    start();
    return region::quota.on() || scheduling.load(std::memory_order_relaxed);
}

int region_fd() { return region::quota.on() ? region::quota.region().fd() : -1; }

void client_made(int control_fd, std::uint32_t client) {
    join(control_fd, client, region_fd());
    region::quota.enforce(region::kMemory);
}

void client_works(int control_fd, std::uint32_t client) { join_again(control_fd, client, region_fd()); }

// Once for each client, or more often where it has several: from now on there is something to manage.
void client_computes(int control_fd, std::uint32_t client) {
    static constinit std::atomic<std::uint32_t> told{0};
    if (told.exchange(client, std::memory_order_relaxed) != client) join(control_fd, client, region_fd());
}

operations::Telling told_in() {
    region::Slot* slot = region::quota.on() ? region::quota.own_slot() : nullptr;
    if (slot == nullptr) return {.known = true, .slot = nullptr, .operations = nullptr};
    return {.known = true, .slot = slot, .operations = region::quota.region().operations_of(*slot)};
}

void announced(std::int64_t lead_ns) { say_announcement(lead_ns); }

// A hint for soon is an announcement where somebody wants those. What a touch needs is made at the next launch.
void hinted(std::uint64_t nanoseconds) {
    activity::Own* own = activity::telling();
    if (own == nullptr || !arrivals::is_ours(*own)) return;
    own->asked_ns.store(monotonic_ns(), std::memory_order_relaxed);
    if (nanoseconds > static_cast<std::uint64_t>(activity::kAtOnceNs)) return;
    const auto lead_ns = static_cast<std::int64_t>(nanoseconds);
    region::Slot* slot = own->slot.load(std::memory_order_acquire);
    if (slot != nullptr && (slot->watch.load() & region::kAnnouncements) != 0) activity::announce(*own, lead_ns);
    hooks::touch(lead_ns);
}

__attribute__((constructor)) void loaded() {
    if (void* own = resolve::of_c_library("clock_gettime"))
        machine_clock.store(reinterpret_cast<ClockFunction*>(own), std::memory_order_relaxed);
    if (!is_hooking()) return;
    resolve::copy_of_base(resolve::Library::kCuda);
    resolve::copy_of_base(resolve::Library::kNvml);
}

}  // namespace

constinit const rm::OnClient rm::on_client{
    .asked = start, .made = client_made, .works = client_works, .computes = client_computes};

constinit const activity::OnWork activity::on_work = runlist::say_work;
constinit const activity::OnAnnouncement activity::on_announcement = announced;
constinit const arrivals::Touch arrivals::touch = hooks::touch;
constinit const OnHint on_hint = hinted;

constinit const operations::Surroundings operations::surroundings{
    .hooking = is_hooking,
    .any_capture = hooks::any_capture,
    .join = join_page,
    .find = resolve::next,
    .told_in = told_in,
};

constinit const resolve::Substitutes resolve::substitutes{
    .wanted = is_hooking,
    .listed = hooks::is_listed,
    .of = hooks::hook_of,
    .of_copy = hooks::hook_of_copy,
    .add = hooks::add_copy,
    .added = hooked,
    .emulated_ioctl = runlist_emulated_ioctl,
};

}  // namespace runlist

// The address sanitizer asks for this by name, and ends a program in which a preloaded library comes before its own
// (GCC's default, and clang's -shared-libasan). It is told not to: its functions call ours, as any library's would.
extern "C" [[gnu::used, gnu::visibility("default")]] const char* __asan_default_options() {
    return "verify_asan_link_order=0";
}
