#include "device/log/event_buffer.hpp"

#include <cstddef>
#include <cstring>

namespace emulator {
void EventBuffer::write(const Switch& record, Time wall_offset) {
    const bool hidden = !reader_.admin && reader_.uid != record.owner.uid;
    if (hidden && !reader_.all_users) return;
    const std::uint16_t sequence = sequence_++;
    if (!enabled_) return;
    const rm::SwitchRecord out{.tag = record.tag,
                               .sequence = sequence,
                               .context = hidden ? 0 : record.owner.context,
                               .pid = hidden ? 0 : static_cast<std::uint32_t>(record.owner.pid),
                               .time = static_cast<std::uint64_t>(record.at + wall_offset)};
    std::memcpy(ring_->data() + std::size_t{put_} * kRecordBytes, &out, sizeof out);
    put_ = (put_ + 1) % records_;
    reinterpret_cast<rm::EventBufferHeader*>(header_->data())->put.store(put_, std::memory_order_release);
}

}  // namespace emulator
