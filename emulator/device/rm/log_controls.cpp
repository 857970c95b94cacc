#include "device/rm/log_controls.hpp"

#include "shared/clock.hpp"

namespace emulator {

std::uint32_t get_time(ControlCall& call) {
    call.put(0, static_cast<std::uint64_t>(wall_now()));
    return status::kOk;
}

// The level of detail and the filter are root's own tools' on a real GPU too: everybody gets starts and ends.
std::uint32_t bind_event_buffer(ControlCall& call) {
    constexpr std::size_t kBuffer = 0, kRecordSize = 4, kAllUsers = 16, kReason = 20;
    call.put<std::uint32_t>(kReason, 0);
    const auto& objects = call.tree.client(call.client)->objects;
    const auto buffer = objects.find(call.get<std::uint32_t>(kBuffer));
    if (buffer == objects.end()) return status::kObjectNotFound;
    const std::shared_ptr<EventBuffer>& events = buffer->second.events;
    if (!events || events->gpu != call.object->gpu || call.get<std::uint32_t>(kRecordSize) != EventBuffer::kRecordBytes)
        return status::kInvalidArgument;
    Gpu& gpu = call.gpus[call.object->gpu];
    gpu.reach(call.now);  // what happened before is not for it
    if (gpu.switch_log.attach(events)) events->bind({call.caller.uid, call.get<std::uint8_t>(kAllUsers) != 0});
    return status::kOk;
}

std::uint32_t enable_event_buffer(ControlCall& call) {
    constexpr std::uint32_t kKeepOldest = 1;
    constexpr std::uint32_t kKeepNewest = 2;
    const bool enabled = call.get<std::uint8_t>(0) != 0;
    const auto flags = call.get<std::uint32_t>(4);
    if (flags & ~(kKeepOldest | kKeepNewest)) return status::kInvalidArgument;
    // A buffer that keeps its oldest records needs a reader that says how far it is; there is none here.
    if (enabled && !(flags & kKeepNewest)) return status::kNotSupported;
    call.object->events->enable(enabled);
    return status::kOk;
}

std::uint32_t flush_event_buffer(ControlCall& call) {
    Gpu& gpu = call.gpus[call.object->gpu];
    gpu.reach(call.now);
    gpu.switch_log.deliver();
    return status::kOk;
}

}  // namespace emulator
