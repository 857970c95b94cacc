#include "rm/devices.hpp"

#include "core/pages.hpp"
#include "region/quota.hpp"

namespace runlist::rm {
namespace {

constexpr std::uint8_t kNoUuid[16]{};

}  // namespace

void Devices::add(std::uint32_t client, std::uint32_t object, std::uint32_t parent) {
    Table* table = made(table_);
    if (table == nullptr) return;
    for (Entry& entry : table->entries) {
        std::uint64_t free = 0;
        if (!entry.key.compare_exchange_strong(free, kInTheMaking, std::memory_order_acq_rel)) continue;
        entry.parent.store(parent, std::memory_order_relaxed);
        entry.region.store(0, std::memory_order_relaxed);
        entry.key.store(key(client, object), std::memory_order_release);
        return;
    }
}

void Devices::add_device(std::uint32_t client, std::uint32_t object) { add(client, object, 0); }

void Devices::add_subdevice(std::uint32_t client, std::uint32_t device, std::uint32_t object) {
    const int parent = find(client, device);
    if (parent != kUnknownParent) add(client, object, static_cast<std::uint32_t>(parent) + 1);
}

std::uint32_t Devices::to_ask(int index) const {
    const Entry* device = device_of(index);
    if (device == nullptr || device->region.load(std::memory_order_acquire) != 0) return 0;
    const Table* table = table_.load(std::memory_order_acquire);
    for (const Entry& entry : table->entries) {
        const std::uint64_t found = entry.key.load(std::memory_order_acquire);
        const std::uint32_t parent = entry.parent.load(std::memory_order_relaxed);
        if (found > kInTheMaking && parent != 0 && &table->entries[parent - 1] == device) {
            return static_cast<std::uint32_t>(found);
        }
    }
    return 0;
}

void Devices::identify(std::uint32_t client, std::uint32_t subdevice, const std::uint8_t (&uuid)[16]) {
    Entry* device = device_of(find(client, subdevice));
    if (device == nullptr || device->region.load(std::memory_order_relaxed) != 0) return;
    const int index = region::quota.device(uuid);
    if (index < 0) return;
    device->region.store(static_cast<std::uint32_t>(index) + 1, std::memory_order_release);
}

int Devices::find(std::uint32_t client, std::uint32_t object) const {
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr || client == 0) return kUnknownParent;
    for (int index = 0; index < kUnknownParent; ++index) {
        if (table->entries[index].key.load(std::memory_order_acquire) == key(client, object)) return index;
    }
    return kUnknownParent;
}

Devices::Entry* Devices::device_of(int index) const {
    Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr || index == kUnknownParent) return nullptr;
    const std::uint32_t parent = table->entries[index].parent.load(std::memory_order_relaxed);
    return &table->entries[parent != 0 ? parent - 1 : static_cast<std::uint32_t>(index)];
}

int Devices::in_region(int index) const {
    const Entry* entry = device_of(index);
    const std::uint32_t known = entry != nullptr ? entry->region.load(std::memory_order_acquire) : 0;
    return known != 0 ? static_cast<int>(known) - 1 : region::quota.device(kNoUuid);
}

Parents Devices::below(std::uint32_t client, std::uint32_t object) const {
    Parents found;
    const int index = find(client, object);
    if (index == kUnknownParent) return found;
    const Table* table = table_.load(std::memory_order_acquire);
    for (int other = 0; other < kUnknownParent; ++other) {
        const Entry& entry = table->entries[other];
        const bool child = entry.key.load(std::memory_order_acquire) >> 32 == client &&
                           entry.parent.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(index) + 1;
        if (child || other == index) found[static_cast<std::size_t>(other)] = true;
    }
    return found;
}

Parents Devices::of_client(std::uint32_t client) const {
    Parents found;
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr || client == 0) return found;
    for (int index = 0; index < kUnknownParent; ++index) {
        const bool own = table->entries[index].key.load(std::memory_order_acquire) >> 32 == client;
        if (own) found[static_cast<std::size_t>(index)] = true;
    }
    return found;
}

void Devices::release(const Parents& parents) {
    Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) return;
    for (int index = 0; index < kUnknownParent; ++index) {
        if (parents[static_cast<std::size_t>(index)]) {
            table->entries[index].key.store(0, std::memory_order_release);
        }
    }
}

}  // namespace runlist::rm
