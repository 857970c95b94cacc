#include "device/rm/allocations.hpp"

#include <algorithm>
#include <iterator>

#include "device/rm/status.hpp"

namespace emulator {
namespace {

// Each of an event buffer's two memories takes a descriptor here, so there are fewer than a driver would give.
constexpr std::size_t kMaxMemories = 1024;
constexpr std::size_t kMaxClientMemories = 128;
constexpr std::uint64_t kMaxMemoryBytes = 16 << 20;

// The client's object of that class, or nothing.
const RmObject* find(const AllocationCall& call, std::uint32_t handle, std::uint32_t cls) {
    const auto it = call.client.objects.find(handle);
    return it != call.client.objects.end() && it->second.cls == cls ? &it->second : nullptr;
}

std::uint32_t make_device(AllocationCall& call) {
    if (call.object.parent != call.client_handle) return status::kInvalidObjectHandle;
    call.object.gpu = call.get<rm::DeviceParameters>().device_id;
    return call.object.gpu < call.gpus.size() ? status::kOk : status::kInvalidArgument;
}

std::uint32_t make_subdevice(AllocationCall& call) {
    const RmObject* device = find(call, call.object.parent, rm_class::kDevice);
    if (!device) return status::kInvalidObjectHandle;
    call.object.gpu = device->gpu;
    return status::kOk;
}

std::uint32_t make_device_memory(AllocationCall& call) {
    auto asked = call.get<rm::MemoryParameters>();
    const RmObject* device = find(call, call.object.parent, rm_class::kDevice);
    if (!device) return status::kInvalidObjectHandle;
    if (asked.size == 0) return status::kInvalidArgument;
    call.object.gpu = device->gpu;
    call.object.block = call.gpus[device->gpu].memory.take(asked.size);
    if (!call.object.block) return status::kNoMemory;
    asked.size = call.object.block->bytes();
    asked.alignment = PhysicalMemory::kPage;
    asked.offset = call.object.block->offset();
    call.put(asked);
    return status::kOk;
}

std::uint32_t make_memory(AllocationCall& call) {
    const auto asked = call.get<rm::MemoryParameters>();
    if (call.object.parent != call.client_handle) return status::kInvalidObjectHandle;
    // Only what the owner cannot write is of use to an event buffer, and there is no other use for it here.
    if (!(asked.attr2 & rm::kMemoryUserReadOnly) || asked.size == 0) return status::kInvalidArgument;
    const auto is_memory = [](const auto& entry) { return entry.second.cls == rm_class::kMemoryDeviceless; };
    if (std::ranges::count_if(call.client.objects, is_memory) >= static_cast<std::ptrdiff_t>(kMaxClientMemories) ||
        call.tree.count_objects(rm_class::kMemoryDeviceless) >= kMaxMemories)
        return status::kInsufficientResources;
    if (asked.size > kMaxMemoryBytes) return status::kNoMemory;
    constexpr std::uint64_t kPage = 4096;
    call.object.memory = std::make_shared<SharedMemory>("emulated-gpu-events", (asked.size + kPage - 1) / kPage * kPage,
                                                        SharedMemory::Others::kReadOnly);
    return call.object.memory->valid() ? status::kOk : status::kNoMemory;
}

std::uint32_t make_event_buffer(AllocationCall& call) {
    const auto asked = call.get<rm::EventBufferParameters>();
    const std::uint32_t count = asked.record_count;
    if (call.object.parent != call.client_handle) return status::kInvalidObjectHandle;
    for (const std::uint32_t handle : {asked.header, asked.records})
        if (!call.client.objects.contains(handle)) return status::kObjectNotFound;
    const RmObject* gpu = find(call, asked.subdevice, rm_class::kSubdevice);
    if (!gpu) return status::kInvalidObjectHandle;
    const RmObject* header_memory = find(call, asked.header, rm_class::kMemoryDeviceless);
    const RmObject* ring = find(call, asked.records, rm_class::kMemoryDeviceless);
    if (!header_memory || !ring || asked.header == asked.records) return status::kInvalidArgument;
    if (asked.record_size != EventBuffer::kRecordBytes || count < EventBuffer::kMinRecords ||
        count > EventBuffer::kMaxRecords || header_memory->memory->size() < EventBuffer::kHeaderBytes ||
        ring->memory->size() < std::uint64_t{count} * EventBuffer::kRecordBytes)
        return status::kInvalidArgument;
    call.object.gpu = gpu->gpu;
    call.object.events = std::make_shared<EventBuffer>(header_memory->memory, ring->memory, count, gpu->gpu);
    call.object.needs = {asked.subdevice, asked.header, asked.records};
    return status::kOk;
}

constexpr Allocation kAllocations[] = {
    {rm_class::kDevice, sizeof(rm::DeviceParameters), true, make_device},
    {rm_class::kSubdevice, sizeof(rm::SubdeviceParameters), true, make_subdevice},
    {rm_class::kDeviceMemory, sizeof(rm::MemoryParameters), false, make_device_memory},
    {rm_class::kMemoryDeviceless, sizeof(rm::MemoryParameters), false, make_memory},
    {rm_class::kEventBuffer, sizeof(rm::EventBufferParameters), false, make_event_buffer},
};

}  // namespace

const Allocation* find_allocation(std::uint32_t cls) {
    const auto* it = std::ranges::find(kAllocations, cls, &Allocation::cls);
    return it == std::end(kAllocations) ? nullptr : it;
}

}  // namespace emulator
