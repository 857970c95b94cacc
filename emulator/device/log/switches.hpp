// One GPU's context-switch log: who was on the GPU from when to when, for any number of readers.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "device/log/event_buffer.hpp"
#include "model/runlist.hpp"

namespace emulator {

class SwitchLog {
  public:
    // Says whose a group of the runlist is; a group without a name is not logged.
    void name(GroupId group, const ContextOwner& owner) { owners_[group] = owner; }
    void forget(GroupId group) { owners_.erase(group); }

    // Has the buffer written to from now on, for as long as it exists. False, and nothing changes, when it is already.
    bool attach(const std::shared_ptr<EventBuffer>& buffer);

    void add(SwitchTag tag, GroupId group, Time at);
    // Writes what has been logged to the buffers.
    void deliver();
    // The same, unless the readers are not due to be served yet.
    void deliver_if_due(Time now) {
        if (!logged_.empty() && now >= due_) deliver();
    }

  private:
    std::map<GroupId, ContextOwner> owners_;
    std::vector<std::weak_ptr<EventBuffer>> readers_;
    std::vector<Switch> logged_;
    Time due_ = 0;
};

}  // namespace emulator
