#include "device/rm/controls.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "device/rm/log_controls.hpp"
#include "model/timing.hpp"
#include "shared/uuid.hpp"

namespace emulator {
namespace {

Time slice_from(std::uint64_t microseconds) {
    constexpr auto kLongest = static_cast<std::uint64_t>(std::numeric_limits<Time>::max() / 4 / timing::kMicrosecond);
    return static_cast<Time>(std::min(microseconds, kLongest)) * timing::kMicrosecond;
}

Runlist& runlist(ControlCall& call) { return call.gpus[call.object->gpu].runlist; }

// ---- the client
// -----------------------------------------------------------------------------------------------------------

std::uint32_t get_attached_ids(ControlCall& call) {
    rm::GetAttachedIds attached;
    for (std::size_t i = 0; i < rm::kMaxGpus; ++i)
        attached.ids[i] = i < call.gpus.size() ? call.gpus[i].gpu_id() : rm::kNoGpuId;
    call.put(attached);
    return status::kOk;
}

std::uint32_t get_handle_info(ControlCall& call) {
    auto asked = call.get<rm::GetHandleInfo>();
    RmObject self{.cls = rm_class::kRootClient, .parent = 0};
    const RmObject* found = &self;
    if (asked.object != call.client) {
        const auto& objects = call.tree.client(call.client)->objects;
        const auto it = objects.find(asked.object);
        if (it == objects.end()) return status::kObjectNotFound;
        found = &it->second;
    }
    if (asked.index != rm::kHandleInfoParent && asked.index != rm::kHandleInfoClass) return status::kInvalidArgument;
    asked.result = asked.index == rm::kHandleInfoParent ? found->parent : found->cls;
    call.put(asked);
    return status::kOk;
}

std::uint32_t get_child_handle(ControlCall& call) {
    auto asked = call.get<rm::GetChildHandle>();
    for (const auto& [handle, object] : call.tree.client(call.client)->objects) {
        if (object.parent != asked.parent || object.cls != asked.class_) continue;
        asked.object = handle;
        call.put(asked);
        return status::kOk;
    }
    return status::kObjectNotFound;
}

// ---- a subdevice
// ----------------------------------------------------------------------------------------------------------

std::uint32_t get_gid_info(ControlCall& call) {
    const auto& uuid = call.gpus[call.object->gpu].uuid;
    const auto asked = call.get<rm::GetGidInfo>();
    if (asked.index != 0 || (asked.flags != 0 && asked.flags != rm::kGidBinary)) return status::kInvalidArgument;
    rm::GetGidInfo answer{.flags = asked.flags};
    if (asked.flags == rm::kGidBinary) {
        answer.length = static_cast<std::uint32_t>(uuid.size());
        std::memcpy(answer.data, uuid.data(), uuid.size());
    } else {
        const std::string text = uuid_text(uuid);
        answer.length = static_cast<std::uint32_t>(text.size() + 1);
        std::memcpy(answer.data, text.data(), text.size());
    }
    call.put(answer);
    return status::kOk;
}

std::uint32_t disable_channels(ControlCall& call) {
    const auto asked = call.get<rm::FifoDisableChannels>();
    const bool disable = asked.disable != 0;
    if (asked.count > rm::kMaxDisableChannels) return status::kInvalidArgument;
    const Time effective = call.now + (disable ? timing::kSuspendEffect : timing::kResumeEffect);
    // As the driver does: whose clients they are is not asked, and those before one that is not there are done.
    for (std::uint32_t i = 0; i < asked.count; ++i) {
        RmClient* client = call.tree.client(asked.clients[i]);
        if (!client) return status::kInvalidClient;
        const auto it = client->objects.find(asked.channels[i]);
        if (it == client->objects.end() || it->second.cls != rm_class::kHopperChannel ||
            it->second.gpu != call.object->gpu)
            return status::kInvalidChannel;
        const auto group = client->objects.find(it->second.parent);
        if (group == client->objects.end() || !group->second.group || !group->second.group->runlist) continue;
        runlist(call).set_enabled(effective, *group->second.group->runlist, 1U << it->second.channel, !disable);
    }
    if (!disable) call.delay = timing::kResume;
    return status::kOk;
}

std::uint32_t set_preemption_mode(ControlCall& call) {
    const auto asked = call.get<rm::SetCtxswPreemptionMode>();
    const auto& objects = call.tree.client(call.client)->objects;
    const auto channel = objects.find(asked.channel);
    if (channel == objects.end() || channel->second.cls != rm_class::kHopperChannel) return status::kObjectNotFound;
    if (asked.compute > rm::preemption_mode::kCilp) return status::kInvalidArgument;
    const auto group = objects.find(channel->second.parent);
    if ((asked.flags & rm::kPreemptionSetCompute) && group != objects.end() && group->second.group &&
        group->second.group->runlist)
        runlist(call).set_cta_preemption(*group->second.group->runlist, asked.compute != rm::preemption_mode::kCilp);
    return status::kOk;
}

std::uint32_t set_sched_policy(ControlCall&) { return status::kOk; }

// ---- a channel group
// ------------------------------------------------------------------------------------------------------

std::uint32_t set_timeslice(ControlCall& call) {
    RmGroup& group = *call.object->group;
    group.timeslice_us = call.get<rm::SetTimeslice>().timeslice_us;
    if (group.runlist) runlist(call).set_slice(call.now, *group.runlist, slice_from(group.timeslice_us));
    return status::kOk;
}

std::uint32_t get_timeslice(ControlCall& call) {
    call.put(rm::GetTimeslice{call.object->group->timeslice_us});
    return status::kOk;
}

std::uint32_t preempt(ControlCall& call) {
    const RmGroup& group = *call.object->group;
    if (group.runlist) runlist(call).preempt(call.now + timing::kPreemptEffect, *group.runlist);
    return status::kOk;
}

std::uint32_t get_info(ControlCall& call) {
    call.put(rm::GetInfo{call.object->group->id});
    return status::kOk;
}

// Accepted and without effect on latency, as seen.
std::uint32_t set_interleave_level(ControlCall& call) {
    const auto asked = call.get<rm::SetInterleaveLevel>();
    return asked.level <= rm::interleave::kHigh ? status::kOk : status::kNotSupported;
}

std::uint32_t make_realtime(ControlCall& call) {
    const RmGroup& group = *call.object->group;
    if (!group.runlist) return status::kNotSupported;
    runlist(call).set_realtime(call.now, *group.runlist, call.get<rm::MakeRealtime>().realtime != 0);
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
    call.put(rm::GetContextId{call.object->context_id});
    return status::kOk;
}

// What has no delay answers at once: on an H200 in 2 to 20 us, a flush in 50 to 65 us, which is what the way to this
// process and back takes.
constexpr Control kControls[] = {
    {rm::control::kGetAttachedIds, 0, get_attached_ids},
    {rm::control::kGetHandleInfo, 0, get_handle_info},
    {rm::control::kGetChildHandle, 0, get_child_handle},
    {rm::control::kGetGidInfo, 0, get_gid_info},
    {rm::control::kTimerGetTime, 0, get_time},
    {rm::control::kFifoDisableChannels, timing::kSuspend, disable_channels},
    {rm::control::kFifoRunlistSetSchedPolicy, timing::kSetSchedulingPolicy, set_sched_policy},
    {rm::control::kSetCtxswPreemptionMode, timing::kSetPreemptionMode, set_preemption_mode},
    {rm::control::kBindSwitchLog, 0, bind_event_buffer},
    {rm::control::kEventBufferEnable, 0, enable_event_buffer},
    {rm::control::kEventBufferFlush, 0, flush_event_buffer},
    {rm::control::kGpfifoSchedule, timing::kSchedule, gpfifo_schedule},
    {rm::control::kSetTimeslice, timing::kSetSlice, set_timeslice},
    {rm::control::kGetTimeslice, 0, get_timeslice},
    {rm::control::kPreempt, timing::kPreempt, preempt},
    {rm::control::kGetInfo, 0, get_info},
    {rm::control::kSetInterleaveLevel, timing::kSetInterleave, set_interleave_level},
    {rm::control::kMakeRealtime, timing::kMakeRealtime, make_realtime},
    {rm::control::kRestartRunlist, timing::kRestartRunlist, restart_runlist},
    {rm::control::kGetContextId, 0, get_context_id},
};

}  // namespace

const Control* find_control(std::uint32_t command) {
    const auto* it = std::ranges::find(kControls, command, &Control::number);
    return it == std::end(kControls) ? nullptr : it;
}

}  // namespace emulator
