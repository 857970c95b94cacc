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
constexpr std::uint32_t kUserReadOnly = 1U << 22;  // in attr2

// The client's object of that class, or nothing.
const RmObject* find(const AllocationCall& call, std::uint32_t handle, std::uint32_t cls) {
    const auto it = call.client.objects.find(handle);
    return it != call.client.objects.end() && it->second.cls == cls ? &it->second : nullptr;
}

std::uint32_t make_device(AllocationCall& call) {
    if (call.object.parent != call.client_handle) return status::kInvalidObject;
    if (!call.parameters.empty()) call.object.gpu = call.get<std::uint32_t>(0);
    return call.object.gpu < call.gpus.size() ? status::kOk : status::kInvalidArgument;
}

std::uint32_t make_subdevice(AllocationCall& call) {
    const RmObject* device = find(call, call.object.parent, rm_class::kDevice);
    if (!device) return status::kInvalidObject;
    call.object.gpu = device->gpu;
    return status::kOk;
}

std::uint32_t make_device_memory(AllocationCall& call) {
    constexpr std::size_t kSize = 64, kAlignment = 72, kOffset = 80;
    const RmObject* device = find(call, call.object.parent, rm_class::kDevice);
    if (!device) return status::kInvalidObject;
    const auto bytes = call.get<std::uint64_t>(kSize);
    if (bytes == 0) return status::kInvalidArgument;
    call.object.gpu = device->gpu;
    call.object.block = call.gpus[device->gpu].memory.take(bytes);
    if (!call.object.block) return status::kNoMemory;
    call.put(kSize, call.object.block->bytes());
    call.put(kAlignment, PhysicalMemory::kPage);
    call.put(kOffset, call.object.block->offset());
    return status::kOk;
}

std::uint32_t make_memory(AllocationCall& call) {
    constexpr std::size_t kAttr2 = 28, kSize = 64;
    const auto bytes = call.get<std::uint64_t>(kSize);
    if (call.object.parent != call.client_handle) return status::kInvalidObject;
    // Only what the owner cannot write is of use to an event buffer, and there is no other use for it here.
    if (!(call.get<std::uint32_t>(kAttr2) & kUserReadOnly) || bytes == 0) return status::kInvalidArgument;
    const auto is_memory = [](const auto& entry) { return entry.second.cls == rm_class::kMemory; };
    if (std::ranges::count_if(call.client.objects, is_memory) >= static_cast<std::ptrdiff_t>(kMaxClientMemories) ||
        call.tree.count_objects(rm_class::kMemory) >= kMaxMemories)
        return status::kInsufficientResources;
    if (bytes > kMaxMemoryBytes) return status::kNoMemory;
    constexpr std::uint64_t kPage = 4096;
    call.object.memory = std::make_shared<SharedMemory>("emulated-gpu-events", (bytes + kPage - 1) / kPage * kPage,
                                                        SharedMemory::Others::kReadOnly);
    return call.object.memory->valid() ? status::kOk : status::kNoMemory;
}

std::uint32_t make_event_buffer(AllocationCall& call) {
    constexpr std::size_t kRecordSize = 16, kRecordCount = 20, kSubdevice = 52, kHeader = 60, kRecords = 64;
    const auto count = call.get<std::uint32_t>(kRecordCount);
    const auto subdevice = call.get<std::uint32_t>(kSubdevice);
    const auto header = call.get<std::uint32_t>(kHeader);
    const auto records = call.get<std::uint32_t>(kRecords);
    if (call.object.parent != call.client_handle) return status::kInvalidObject;
    for (const std::uint32_t handle : {header, records})
        if (!call.client.objects.contains(handle)) return status::kObjectNotFound;
    const RmObject* gpu = find(call, subdevice, rm_class::kSubdevice);
    if (!gpu) return status::kInvalidObject;
    const RmObject* header_memory = find(call, header, rm_class::kMemory);
    const RmObject* ring = find(call, records, rm_class::kMemory);
    if (!header_memory || !ring || header == records) return status::kInvalidArgument;
    if (call.get<std::uint32_t>(kRecordSize) != EventBuffer::kRecordBytes || count < EventBuffer::kMinRecords ||
        count > EventBuffer::kMaxRecords || header_memory->memory->size() < EventBuffer::kHeaderBytes ||
        ring->memory->size() < std::uint64_t{count} * EventBuffer::kRecordBytes)
        return status::kInvalidArgument;
    call.object.gpu = gpu->gpu;
    call.object.events = std::make_shared<EventBuffer>(header_memory->memory, ring->memory, count, gpu->gpu);
    call.object.needs = {subdevice, header, records};
    return status::kOk;
}

constexpr Allocation kAllocations[] = {
    {rm_class::kDevice, 56, true, make_device},
    {rm_class::kSubdevice, 4, true, make_subdevice},
    {rm_class::kDeviceMemory, 128, false, make_device_memory},
    {rm_class::kMemory, 128, false, make_memory},
    {rm_class::kEventBuffer, 72, false, make_event_buffer},
};

}  // namespace

const Allocation* find_allocation(std::uint32_t cls) {
    const auto* it = std::ranges::find(kAllocations, cls, &Allocation::cls);
    return it == std::end(kAllocations) ? nullptr : it;
}

}  // namespace emulator
