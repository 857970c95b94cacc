#include "device/rm/controls.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "device/rm/log_controls.hpp"
#include "model/timing.hpp"
#include "shared/uuid.hpp"

namespace emulator {
namespace {

using timing::kMicrosecond;

constexpr std::uint32_t kMaxAttached = 32;
constexpr std::uint32_t kNoGpu = 0xFFFFFFFF;
constexpr std::uint32_t kMaxChannels = 64;  // of one FIFO_DISABLE_CHANNELS

Time slice_from(std::uint64_t microseconds) {
    constexpr auto kLongest = static_cast<std::uint64_t>(std::numeric_limits<Time>::max() / 4 / kMicrosecond);
    return static_cast<Time>(std::min(microseconds, kLongest)) * kMicrosecond;
}

Runlist& runlist(ControlCall& call) { return call.gpus[call.object->gpu].runlist; }

// ---- the client
// -----------------------------------------------------------------------------------------------------------

std::uint32_t get_attached_ids(ControlCall& call) {
    for (std::uint32_t i = 0; i < kMaxAttached; ++i)
        call.put(4 * i, i < call.gpus.size() ? call.gpus[i].gpu_id() : kNoGpu);
    return status::kOk;
}

std::uint32_t get_handle_info(ControlCall& call) {
    constexpr std::uint32_t kParent = 1;
    constexpr std::uint32_t kClass = 2;
    const auto wanted = call.get<std::uint32_t>(0);
    const auto index = call.get<std::uint32_t>(4);
    RmObject self{.cls = rm_class::kRoot, .parent = 0};
    const RmObject* found = &self;
    if (wanted != call.client) {
        const auto& objects = call.tree.client(call.client)->objects;
        const auto it = objects.find(wanted);
        if (it == objects.end()) return status::kObjectNotFound;
        found = &it->second;
    }
    if (index != kParent && index != kClass) return status::kInvalidArgument;
    call.put<std::uint64_t>(8, index == kParent ? found->parent : found->cls);
    return status::kOk;
}

std::uint32_t get_child_handle(ControlCall& call) {
    const auto parent = call.get<std::uint32_t>(0);
    const auto cls = call.get<std::uint32_t>(4);
    for (const auto& [handle, object] : call.tree.client(call.client)->objects) {
        if (object.parent != parent || object.cls != cls) continue;
        call.put(8, handle);
        return status::kOk;
    }
    return status::kObjectNotFound;
}

// ---- a subdevice
// ----------------------------------------------------------------------------------------------------------

std::uint32_t get_gid_info(ControlCall& call) {
    constexpr std::uint32_t kBinary = 2;
    const auto& uuid = call.gpus[call.object->gpu].uuid;
    const auto flags = call.get<std::uint32_t>(4);
    if (call.get<std::uint32_t>(0) != 0 || (flags != 0 && flags != kBinary)) return status::kInvalidArgument;
    std::memset(call.parameters.data() + 12, 0, 256);
    if (flags == kBinary) {
        call.put<std::uint32_t>(8, static_cast<std::uint32_t>(uuid.size()));
        std::memcpy(call.parameters.data() + 12, uuid.data(), uuid.size());
    } else {
        const std::string text = uuid_text(uuid);
        call.put(8, static_cast<std::uint32_t>(text.size() + 1));
        std::memcpy(call.parameters.data() + 12, text.data(), text.size());
    }
    return status::kOk;
}

std::uint32_t disable_channels(ControlCall& call) {
    const bool disable = call.get<std::uint8_t>(0) != 0;
    const auto count = call.get<std::uint32_t>(4);
    if (count > kMaxChannels) return status::kInvalidArgument;
    // All of them or none: the driver looks every channel up before it touches one.
    struct Stop {
        GroupId group;
        std::uint32_t channel;
    };
    std::vector<Stop> stops;
    for (std::uint32_t i = 0; i < count; ++i) {
        RmClient* client = call.tree.client(call.get<std::uint32_t>(24 + 4 * i), call.caller.open_file);
        if (!client) return status::kInvalidClient;
        const auto it = client->objects.find(call.get<std::uint32_t>(280 + 4 * i));
        if (it == client->objects.end() || it->second.cls != rm_class::kChannel || it->second.gpu != call.object->gpu)
            return status::kObjectNotFound;
        const auto group = client->objects.find(it->second.parent);
        if (group == client->objects.end() || !group->second.group) continue;
        if (group->second.group->runlist) stops.push_back({*group->second.group->runlist, it->second.channel});
    }
    const Time effective = call.now + (disable ? timing::kDisableEffect : timing::kEnableEffect);
    for (const Stop& stop : stops) runlist(call).set_enabled(effective, stop.group, 1U << stop.channel, !disable);
    if (!disable) call.delay = 250 * kMicrosecond;
    return status::kOk;
}

std::uint32_t set_preemption_mode(ControlCall& call) {
    constexpr std::uint32_t kSetCompute = 1;
    constexpr std::uint32_t kCilp = 2;
    const auto flags = call.get<std::uint32_t>(0);
    const auto mode = call.get<std::uint32_t>(12);
    const auto& objects = call.tree.client(call.client)->objects;
    const auto channel = objects.find(call.get<std::uint32_t>(4));
    if (channel == objects.end() || channel->second.cls != rm_class::kChannel) return status::kObjectNotFound;
    if (mode > kCilp) return status::kInvalidArgument;
    const auto group = objects.find(channel->second.parent);
    if ((flags & kSetCompute) && group != objects.end() && group->second.group && group->second.group->runlist)
        runlist(call).set_cta_preemption(*group->second.group->runlist, mode != kCilp);
    return status::kOk;
}

std::uint32_t set_sched_policy(ControlCall&) { return status::kOk; }

// ---- a channel group
// ------------------------------------------------------------------------------------------------------

std::uint32_t set_timeslice(ControlCall& call) {
    RmGroup& group = *call.object->group;
    group.timeslice_us = call.get<std::uint64_t>(0);
    if (group.runlist) runlist(call).set_slice(call.now, *group.runlist, slice_from(group.timeslice_us));
    return status::kOk;
}

std::uint32_t get_timeslice(ControlCall& call) {
    call.put(0, call.object->group->timeslice_us);
    return status::kOk;
}

std::uint32_t preempt(ControlCall& call) {
    const RmGroup& group = *call.object->group;
    if (group.runlist) runlist(call).preempt(call.now + timing::kPreemptEffect, *group.runlist);
    return status::kOk;
}

std::uint32_t get_info(ControlCall& call) {
    call.put(0, call.object->group->id);
    return status::kOk;
}

// Accepted and without effect on latency, as seen.
std::uint32_t set_interleave_level(ControlCall& call) {
    return call.get<std::uint32_t>(0) <= 2 ? status::kOk : status::kNotSupported;
}

std::uint32_t make_realtime(ControlCall& call) {
    const RmGroup& group = *call.object->group;
    if (!group.runlist) return status::kNotSupported;
    runlist(call).set_realtime(call.now, *group.runlist, call.get<std::uint8_t>(0) != 0);
    return status::kOk;
}

// Answers ok and the group keeps running, as seen.
std::uint32_t gpfifo_schedule(ControlCall&) { return status::kOk; }

// ---- a channel
// ------------------------------------------------------------------------------------------------------------

std::uint32_t restart_runlist(ControlCall& call) {
    runlist(call).expire_slice(call.now);
    return status::kOk;
}

std::uint32_t get_context_id(ControlCall& call) {
    call.put(0, call.object->context_id);
    return status::kOk;
}

// Delays: medians seen on an H200. The rest answers at once: 2 to 20 us there, a flush 50 to 65 us, which is what the
// way to this process and back takes.
constexpr Control kControls[] = {
    {0x0201, rm_class::kRoot, 4 * kMaxAttached, false, 0, get_attached_ids},
    {0x0D02, rm_class::kRoot, 16, false, 0, get_handle_info},
    {0x0D05, rm_class::kRoot, 12, false, 0, get_child_handle},
    {0x2080014A, rm_class::kSubdevice, 268, false, 0, get_gid_info},
    {0x20800403, rm_class::kSubdevice, 8, false, 0, get_time},
    {0x2080110B, rm_class::kSubdevice, 536, false, 580 * kMicrosecond, disable_channels},
    {0x20801115, rm_class::kSubdevice, 8, true, 160 * kMicrosecond, set_sched_policy},
    {0x20801210, rm_class::kSubdevice, 32, false, 250 * kMicrosecond, set_preemption_mode},
    {0x20801238, rm_class::kSubdevice, 24, false, 0, bind_event_buffer},
    {0x90CD0101, rm_class::kEventBuffer, 8, false, 0, enable_event_buffer},
    {0x90CD0104, rm_class::kEventBuffer, 0, false, 0, flush_event_buffer},
    {0xA06C0101, rm_class::kChannelGroup, 3, false, 190 * kMicrosecond, gpfifo_schedule},
    {0xA06C0103, rm_class::kChannelGroup, 8, false, 300 * kMicrosecond, set_timeslice},
    {0xA06C0104, rm_class::kChannelGroup, 8, false, 0, get_timeslice},
    {0xA06C0105, rm_class::kChannelGroup, 8, false, 500 * kMicrosecond, preempt},
    {0xA06C0106, rm_class::kChannelGroup, 4, false, 0, get_info},
    {0xA06C0107, rm_class::kChannelGroup, 4, true, 210 * kMicrosecond, set_interleave_level},
    {0xA06C0110, rm_class::kChannelGroup, 1, true, 1400 * kMicrosecond, make_realtime},
    {0xA06F0111, rm_class::kChannel, 2, true, 300 * kMicrosecond, restart_runlist},
    {0xA06F0113, rm_class::kChannel, 4, false, 0, get_context_id},
};

}  // namespace

const Control* find_control(std::uint32_t command) {
    const auto* it = std::ranges::find(kControls, command, &Control::command);
    return it == std::end(kControls) ? nullptr : it;
}

}  // namespace emulator
