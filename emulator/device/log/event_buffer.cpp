#include "device/log/event_buffer.hpp"

#include <atomic>
#include <cstddef>
#include <cstring>

namespace emulator {
namespace {

constexpr std::uint16_t kContextSwitch = 2;  // type of record
constexpr std::uint8_t kNoInstance = 0xFF;   // no MIG
constexpr std::size_t kPutOffset = 4;

struct Record {
    std::uint16_t type = kContextSwitch;
    std::uint16_t subtype = 0;
    std::uint32_t extra_data = 0;
    SwitchTag tag;
    std::uint8_t virtual_machine = 0;
    std::uint16_t sequence;
    std::uint32_t context;
    std::uint32_t pid;
    std::uint16_t namespace_pid = 0;
    std::uint8_t gpu_instance = kNoInstance;
    std::uint8_t compute_instance = kNoInstance;
    std::uint64_t time;  // ns of CLOCK_REALTIME
};
static_assert(sizeof(Record) == EventBuffer::kRecordBytes);

}  // namespace

void EventBuffer::write(const Switch& record, Time wall_offset) {
    const bool hidden = reader_.uid != 0 && reader_.uid != record.owner.uid;
    if (hidden && !reader_.all_users) return;
    const std::uint16_t sequence = sequence_++;
    if (!enabled_) return;
    const Record out{.tag = record.tag,
                     .sequence = sequence,
                     .context = hidden ? 0 : record.owner.context,
                     .pid = hidden ? 0 : static_cast<std::uint32_t>(record.owner.pid),
                     .time = static_cast<std::uint64_t>(record.at + wall_offset)};
    std::memcpy(ring_->data() + std::size_t{put_} * kRecordBytes, &out, sizeof out);
    put_ = (put_ + 1) % records_;
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(header_->data() + kPutOffset))
        .store(put_, std::memory_order_release);
}

}  // namespace emulator
