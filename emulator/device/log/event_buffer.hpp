// A reader's event buffer (class 0x90CD): a header and a ring of records in memory that the reader maps.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "device/memory/shared.hpp"
#include "shared/protocol.hpp"

namespace emulator {

// Whose residency a record is about.
struct ContextOwner {
    pid_t pid;
    uid_t uid;
    std::uint32_t context;
};

using rm::SwitchTag;

struct Switch {
    Time at;  // of the model's clock
    SwitchTag tag;
    ContextOwner owner;
};

// Who reads: an administrator sees everybody's processes, others see that there are some.
struct LogReader {
    uid_t uid;
    bool admin;
    bool all_users;  // asked for other users' records too
};

class EventBuffer {
  public:
    static constexpr std::uint32_t kHeaderBytes = sizeof(rm::EventBufferHeader);
    static constexpr std::uint32_t kRecordBytes = sizeof(rm::SwitchRecord);
    static constexpr std::uint32_t kMinRecords = 2;
    static constexpr std::uint32_t kMaxRecords = 65536;

    // The memories must be large enough for the header, and for `records` records.
    EventBuffer(std::shared_ptr<SharedMemory> header, std::shared_ptr<SharedMemory> ring, std::uint32_t records,
                std::uint32_t gpu)
        : gpu(gpu), header_(std::move(header)), ring_(std::move(ring)), records_(records) {}

    void bind(const LogReader& reader) { reader_ = reader; }
    void enable(bool enabled) { enabled_ = enabled; }
    // Writes a record over the oldest; `wall_offset` makes the model's time CLOCK_REALTIME. While the buffer is
    // disabled records are lost, as their numbers tell.
    void write(const Switch& record, Time wall_offset);

    const std::uint32_t gpu;

  private:
    std::shared_ptr<SharedMemory> header_;
    std::shared_ptr<SharedMemory> ring_;
    std::uint32_t records_;
    std::uint32_t put_ = 0;
    std::uint16_t sequence_ = 0;
    bool enabled_ = false;
    LogReader reader_{};
};

}  // namespace emulator
