#include "device/rm/log_controls.hpp"

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "shared/clock.hpp"

namespace emulator {

namespace {

// As the driver asks: for CAP_SYS_ADMIN, which root in a container seldom has. Of a process that cannot be seen root
// is.
bool is_admin(const RmCaller& caller) {
    constexpr int kSysAdmin = 21;
    std::ifstream file("/proc/" + std::to_string(caller.pid) + "/status");
    for (std::string line; std::getline(file, line);) {
        constexpr std::string_view kEffective = "CapEff:\t";
        if (line.starts_with(kEffective))
            return std::strtoull(line.c_str() + kEffective.size(), nullptr, 16) >> kSysAdmin & 1;
    }
    return caller.uid == 0;
}

}  // namespace

std::uint32_t get_time(ControlCall& call) {
    call.put(rm::TimerGetTime{static_cast<std::uint64_t>(wall_now())});
    return status::kOk;
}

// The level of detail and the filter are root's own tools' on a real GPU too: everybody gets starts and ends.
std::uint32_t bind_event_buffer(ControlCall& call) {
    auto asked = call.get<rm::BindSwitchLog>();
    asked.reason = 0;
    call.put(asked);
    const auto& objects = call.tree.client(call.client)->objects;
    const auto buffer = objects.find(asked.event_buffer);
    if (buffer == objects.end()) return status::kObjectNotFound;
    const std::shared_ptr<EventBuffer>& events = buffer->second.events;
    if (!events || events->gpu != call.object->gpu || asked.record_size != EventBuffer::kRecordBytes)
        return status::kInvalidArgument;
    Gpu& gpu = call.gpus[call.object->gpu];
    gpu.reach(call.now);  // what happened before is not for it
    if (gpu.switch_log.attach(events)) events->bind({call.caller.uid, is_admin(call.caller), asked.all_users != 0});
    return status::kOk;
}

std::uint32_t enable_event_buffer(ControlCall& call) {
    const auto asked = call.get<rm::EventBufferEnable>();
    const bool enabled = asked.enable != 0;
    if (asked.flags & ~(rm::kEventBufferKeepOldest | rm::kEventBufferKeepNewest)) return status::kInvalidArgument;
    // A buffer that keeps its oldest records needs a reader that says how far it is; there is none here.
    if (enabled && !(asked.flags & rm::kEventBufferKeepNewest)) return status::kNotSupported;
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
