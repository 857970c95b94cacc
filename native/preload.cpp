#include "preload.hpp"

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "cap/gate.hpp"
#include "core/guest.hpp"
#include "core/say.hpp"
#include "hooks/single.hpp"
#include "protocol/environment.autogen.hpp"
#include "region/process.hpp"
#include "region/quota.hpp"
#include "region/region.hpp"
#include "region/slots.hpp"
#include "region/sweep.hpp"
#include "resolve/copies.hpp"
#include "rm/devices.hpp"
#include "rm/door.hpp"
#include "settings/environment.hpp"
#include "settings/place.hpp"

namespace runlist {
namespace {

using region::Fault;
using settings::Settings;

constexpr long kRefused = 126;  // as a shell says of what it found and could not run

enum class Stage : int { kNew, kStarting, kStarted };
constinit std::atomic<Stage> stage{Stage::kNew};
constinit std::atomic<bool> hooking{false};

// Goes on without limits, or not at all where that was asked for.
template <typename... Words>
void fail(const Settings& settings, Words... words) {
    if (!settings.says) return;
    say(settings.strict ? Level::kError : Level::kWarning, words...,
        settings.strict ? "; not started (RUNLIST_STRICT)" : "; going on without limits");
    if (settings.strict) call(SYS_exit_group, kRefused);
}

void read_settings(Settings& settings) {
    settings::Complaints complaints;
    if (::getauxval(AT_SECURE) == 0) settings::read(::environ, settings, complaints);
    if (settings.disabled) return;
    set_say_level(settings.say_level);
    for (int i = 0; i < complaints.count; ++i) {
        const auto& one = complaints.list[i];
        const bool about_limits = settings::is_about_limits(one.bad);
        if (about_limits && settings.in_tree()) continue;  // the tree has its own
        char name[64] = "";
        std::memcpy(name, one.variable, std::min(one.name_length, sizeof(name) - 1));
        const Quoted value{one.variable + one.name_length + 1};
        const char* what = settings::describe(one.bad);
        if (settings.strict && about_limits) fail(settings, static_cast<const char*>(name), "=", value, " ", what);
        say(Level::kWarning, static_cast<const char*>(name), "=", value, " ", what);
    }
}

// The whole of a GPU is no cap on it, but has launches looked at, for the GPUs that have one.
region::Limits limits_of(const Settings& settings) {
    const std::uint64_t cap = settings.has_caps() ? std::min(settings.cap, cap::kWhole) : region::kNoLimit;
    return {.memory = settings.memory, .cap = cap, .strict = settings.strict};
}

Fault open_or_create(const char* path, const region::Limits& limits, region::Region& out) {
    const Fault fault = region::Region::open(path, out);
    return fault == Fault::kMissing ? region::Region::create(path, limits, out) : fault;
}

// The region that this process begins, named to its children.
Fault begin_region(const region::Limits& limits, settings::Path& path, region::Region& out) {
    if (!settings::make_place(::secure_getenv(names::kRuntimeDir), path)) return Fault::kForeign;
    const auto self = region::Self::look();
    region::sweep(path.text, self);
    path.add("/").add(region::own_name(self).text);
    const Fault fault = region::Region::create(path.text, limits, out);
    if (fault == Fault::kNone) ::setenv(names::kRegion, path.text, 1);
    return fault;
}

// The region that all processes share which name the same path, for a path in a directory that others can write to, as
// HAMi's usually is: it lies in our own directory instead.
Fault agree_on_region(const char* named, const region::Limits& limits, settings::Path& path, region::Region& out) {
    std::uint64_t hash = 0xCBF2'9CE4'8422'2325;  // FNV-1a
    for (const char* at = named; *at != '\0'; ++at) hash = (hash ^ static_cast<unsigned char>(*at)) * 0x100'0000'01B3;
    path = {};
    if (!settings::make_place(::secure_getenv(names::kRuntimeDir), path)) return Fault::kForeign;
    path.add("/named-").add(hash);
    return open_or_create(path.text, limits, out);
}

// A region by a name that processes agreed on may be left over from others before them: then the limits of now hold.
Fault named_region(const char* named, const region::Limits& limits, settings::Path& path, region::Region& out) {
    Fault fault = open_or_create(named, limits, out);
    if (fault == Fault::kDamaged || fault == Fault::kVersion) {
        say(Level::kWarning, "region ", Quoted{named}, " ", region::describe(fault),
            ": remove it; another one holds now");
    }
    if (fault != Fault::kNone) fault = agree_on_region(named, limits, path, out);
    if (fault == Fault::kNone && region::is_vacant(out)) out.limit(limits);
    return fault;
}

Fault find_region(const Settings& settings, settings::Path& path, region::Region& out) {
    const region::Limits limits = limits_of(settings);
    if (settings.region[0] != '\0') {
        path.add(settings.region);
        if (settings.makes_region) return named_region(settings.region, limits, path, out);
        const Fault fault = region::Region::open(settings.region, out);
        if (fault != Fault::kMissing || !settings.has_limits()) return fault;
        // Swept away while nobody used it: the name is made again, so that this tree goes on sharing it.
        if (region::Region::create(settings.region, limits, out) == Fault::kNone) return Fault::kNone;
        path = {};
    }
    return begin_region(limits, path, out);
}

cap::Account account_of(const std::uint8_t (&uuid)[16]) {
    const int index = rm::device_by_uuid(uuid);
    if (index < 0) return {};
    region::Device& device = region::quota.region().device(index);
    region::Slot* slot = region::quota.own_slot();
    return {.cap = &device.cap,
            .next_turn = &device.next_turn,
            .gpu_ns = slot != nullptr ? &slot->use[index].gpu_ns : nullptr};
}

void limit(const Settings& settings) {
    if (!settings.has_limits() && !settings.in_tree()) return;
    region::Region region;
    settings::Path path;
    const Fault fault = find_region(settings, path, region);
    if (fault != Fault::kNone) return fail(settings, "region ", Quoted{path.text}, " ", region::describe(fault));
    if (region.header().by_hand != 0) hooks::set_single_limits(settings);
    region::quota.start(region);
    cap::start(region.header().cap, account_of);
    hooking.store(true, std::memory_order_release);
}

__attribute__((constructor)) void loaded() {
    start();
    if (!is_hooking()) return;
    resolve::copy_of_base(hooks::Library::kCuda);
    resolve::copy_of_base(hooks::Library::kNvml);
}

}  // namespace

void start() {
    Stage fresh = Stage::kNew;
    if (stage.load(std::memory_order_acquire) != fresh) return;
    if (!stage.compare_exchange_strong(fresh, Stage::kStarting, std::memory_order_acq_rel)) return;
    Settings settings;
    read_settings(settings);
    rm::watching.store(!settings.disabled, std::memory_order_relaxed);
    if (!settings.disabled) limit(settings);
    stage.store(Stage::kStarted, std::memory_order_release);
}

bool is_hooking() { return hooking.load(std::memory_order_acquire); }

}  // namespace runlist
