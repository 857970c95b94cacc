#include "device/log/switches.hpp"

#include <algorithm>

#include "model/timing.hpp"
#include "shared/clock.hpp"

namespace emulator {
namespace {

constexpr std::size_t kMaxLogged = 4096;

}  // namespace

bool SwitchLog::attach(const std::shared_ptr<EventBuffer>& buffer) {
    if (std::ranges::any_of(readers_, [&](const auto& reader) { return reader.lock() == buffer; })) return false;
    deliver();  // what was before is not for the new one
    readers_.push_back(buffer);
    return true;
}

void SwitchLog::add(SwitchTag tag, GroupId group, Time at) {
    if (readers_.empty()) return;
    const auto owner = owners_.find(group);
    if (owner == owners_.end()) return;
    if (logged_.empty()) due_ = (at / timing::kLogInterval + 1) * timing::kLogInterval;
    logged_.push_back({at, tag, owner->second});
    // After a long sleep there may be a lot, all at once.
    if (logged_.size() >= kMaxLogged) deliver();
}

void SwitchLog::deliver() {
    std::erase_if(readers_, [](const auto& reader) { return reader.expired(); });
    const Time offset = wall_offset();
    for (const auto& reader : readers_)
        if (const auto buffer = reader.lock())
            for (const Switch& record : logged_) buffer->write(record, offset);
    logged_.clear();
}

}  // namespace emulator
