// One emulated GPU: its runlist, its copy engines and its memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/log/switches.hpp"
#include "device/memory/physical.hpp"
#include "model/copy_engine.hpp"
#include "model/runlist.hpp"
#include "shared/uuid.hpp"

namespace emulator {

enum class CopyDirection : std::uint32_t { kToDevice, kToHost, kOnDevice, kCount };

class GpuListener {
  public:
    virtual ~GpuListener() = default;
    virtual void on_progress(std::uint32_t gpu, QueueId queue, double fraction) = 0;
    virtual void on_complete(std::uint32_t gpu, QueueId queue, Time at) = 0;
};

class Gpu : private RunlistListener {
  public:
    Gpu(std::uint32_t index, std::uint64_t memory_bytes, const Uuid& uuid, GpuListener& listener)
        : runlist(*this), memory(memory_bytes), index(index), uuid(uuid), listener_(listener) {}

    // Engine and runlist events in the order of their times.
    void advance(Time to) {
        for (;;) {
            CopyEngine* first = nullptr;
            Time at = runlist.next_event();
            for (CopyEngine& engine : engines)
                if (engine.next_event() < at) {
                    at = engine.next_event();
                    first = &engine;
                }
            if (at > to) return;
            if (first)
                first->step();
            else
                runlist.advance(at);
        }
    }

    // The same, and nothing can happen before `to` any more.
    void reach(Time to) {
        advance(to);
        runlist.reach(to);
    }

    void remove_group(Time at, GroupId group) {
        runlist.remove_group(at, group);
        switch_log.forget(group);
    }

    // A group that RM shows as a client's of MPS is gone: the others are not to stay as it was. With the last of them
    // goes the one that they share.
    void leave_mps(Time at) {
        runlist.set_enabled(at, *mps_group, ~0U, true);
        if (--mps_clients > 0) return;
        remove_group(at, *mps_group);
        mps_group.reset();
    }

    Time next_event() const {
        Time next = runlist.next_event();
        for (const CopyEngine& engine : engines) next = std::min(next, engine.next_event());
        return next;
    }

    // The driver's name for a GPU: from its place on the PCI bus.
    std::uint32_t gpu_id() const { return (index + 1) << 8; }

    Runlist runlist;
    SwitchLog switch_log;
    std::array<CopyEngine, static_cast<std::size_t>(CopyDirection::kCount)> engines;
    PhysicalMemory memory;
    const std::uint32_t index;
    std::uint64_t launches = 0;
    // The channel group that all clients of MPS share, and how many groups of RM stand for it: somebody may hold those
    // of a client that has ended.
    std::optional<GroupId> mps_group;
    std::uint32_t mps_group_id = 0;  // of the hardware's own
    std::uint32_t mps_clients = 0;
    const Uuid uuid;

  private:
    void on_progress(QueueId queue, double fraction) override { listener_.on_progress(index, queue, fraction); }
    void on_complete(QueueId queue, Time at) override { listener_.on_complete(index, queue, at); }
    void on_start(GroupId group, Time at) override { switch_log.add(SwitchTag::kStart, group, at); }
    void on_end(GroupId group, Time at) override { switch_log.add(SwitchTag::kEnd, group, at); }

    GpuListener& listener_;
};

}  // namespace emulator
