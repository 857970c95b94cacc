#include "device/rm/tree.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "model/timing.hpp"

namespace emulator {
namespace {

// The handles of a CUDA process on driver 580, relative to the start of its range. What a context holds beside groups
// and channels does nothing here, but it is there: a search through a process's handles has to pass over it.
struct Placed {
    std::uint32_t offset;
    std::uint32_t cls;
    enum Parent { kUnderClient, kUnderDevice, kUnderSubdevice } parent;
};

constexpr std::uint32_t kDeviceOffset = rm::kDeviceAt - 1;  // of the device, relative to the start of the per-GPU part
constexpr std::uint32_t kSubdeviceOffset = rm::kSubdeviceAt - 1;
constexpr Placed kDeviceObjects[] = {
    {0x03, 0x2081, Placed::kUnderSubdevice}, {0x04, 0xC661, Placed::kUnderSubdevice},
    {0x05, 0xC661, Placed::kUnderSubdevice}, {0x06, 0x90E6, Placed::kUnderSubdevice},
    {0x07, 0x00DE, Placed::kUnderSubdevice}, {0x08, 0x90F1, Placed::kUnderDevice},
    {0x09, 0x90F1, Placed::kUnderDevice},    {0x0B, 0x50A0, Placed::kUnderDevice},
    {0x0C, 0x503C, Placed::kUnderSubdevice}, {0x0D, 0x0040, Placed::kUnderDevice},
    {0x10, 0x0040, Placed::kUnderDevice},    {0x11, 0x0040, Placed::kUnderDevice},
    {0x12, 0x0040, Placed::kUnderDevice},
};
constexpr std::uint32_t kLastDevice = 0xFFF80000;  // leaves room for contexts

// A context's part: the compute group and its context share at its start, then channels, then three copy groups.
constexpr std::uint32_t kShareOffset = 0x01;
constexpr std::array<std::uint32_t, 8> kComputeChannelsAt{0x07, 0x0D, 0x11, 0x15, 0x19, 0x1D, 0x21, 0x25};
constexpr std::array<std::uint32_t, 3> kCopyGroups{0x29, 0x37, 0x45};
constexpr std::array<std::uint32_t, 4> kCopyChannels{0x02, 0x05, 0x08, 0x0B};
constexpr Placed kContextObjects[] = {
    {0x02, 0x40, Placed::kUnderDevice},    {0x04, 0x3E, Placed::kUnderDevice},    {0x06, 0x3E, Placed::kUnderDevice},
    {0x0A, 0x3E, Placed::kUnderDevice},    {0x0C, 0x3E, Placed::kUnderDevice},    {0x28, 0x79, Placed::kUnderSubdevice},
    {0x36, 0x79, Placed::kUnderSubdevice}, {0x44, 0x79, Placed::kUnderSubdevice}, {0x52, 0x79, Placed::kUnderSubdevice},
    {0x53, 0x3E, Placed::kUnderDevice},    {0x55, 0x40, Placed::kUnderDevice},    {0x57, 0x40, Placed::kUnderDevice},
    {0x59, 0x3E, Placed::kUnderDevice},    {0x5B, 0x71, Placed::kUnderDevice},    {0x5D, 0x40, Placed::kUnderDevice},
    {0x5F, 0x40, Placed::kUnderDevice},    {0x61, 0x71, Placed::kUnderDevice},    {0x63, 0x40, Placed::kUnderDevice},
    {0x66, 0x71, Placed::kUnderDevice},    {0x68, 0x40, Placed::kUnderDevice},    {0x6A, 0x40, Placed::kUnderDevice},
    {0x6C, 0x40, Placed::kUnderDevice},    {0x6E, 0x3E, Placed::kUnderDevice},    {0x70, 0x40, Placed::kUnderDevice},
    {0x72, 0x71, Placed::kUnderDevice},    {0x74, 0x83DE, Placed::kUnderDevice},  {0x75, 0x3E, Placed::kUnderDevice},
    {0x77, 0x40, Placed::kUnderDevice},    {0x79, 0x40, Placed::kUnderDevice},
};
constexpr std::uint32_t kContextSpan = 0x8A;

}  // namespace

std::uint32_t RmTree::add_client(std::uint64_t open_file) {
    std::uint32_t handle = 0;
    do {
        handle = rm::kClientBase + next_client_;
        next_client_ = (next_client_ + 1) % rm::kClientCount;
    } while (clients_.contains(handle));
    clients_.emplace(handle, RmClient{open_file, {}, rm::kObjectBase + 1, {}});
    return handle;
}

std::size_t RmTree::count_clients(std::uint64_t open_file) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        clients_, [open_file](const auto& entry) { return entry.second.open_file == open_file; }));
}

std::size_t RmTree::count_objects(std::uint32_t cls) const {
    std::size_t count = 0;
    for (const auto& [handle, client] : clients_)
        for (const auto& [object_handle, object] : client.objects) count += object.cls == cls;
    return count;
}

const RmObject* RmTree::find(std::uint32_t client, std::uint32_t handle) const {
    const auto owner = clients_.find(client);
    if (owner == clients_.end()) return nullptr;
    const auto it = owner->second.objects.find(handle);
    return it == owner->second.objects.end() ? nullptr : &it->second;
}

std::optional<wire::Key> RmTree::export_memory(const RmObject& object) {
    std::erase_if(exported_, [](const auto& entry) { return entry.second.block.expired(); });
    for (const auto& [key, exported] : exported_)
        if (exported.block.lock() == object.block) return std::bit_cast<wire::Key>(key);
    std::array<std::uint8_t, sizeof(wire::Key)> key;
    if (::getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) return std::nullopt;
    exported_[key] = {object.block, object.gpu};
    return std::bit_cast<wire::Key>(key);
}

const RmObject* RmTree::import_memory(std::uint32_t client_handle, std::uint32_t handle, const wire::Key& key) {
    const auto it = exported_.find(std::bit_cast<std::array<std::uint8_t, sizeof(wire::Key)>>(key));
    RmClient* importer = client(client_handle);
    if (it == exported_.end() || !importer) return nullptr;
    auto block = it->second.block.lock();
    const auto device = importer->devices.find(it->second.gpu);
    if (!block || device == importer->devices.end() || importer->objects.size() >= kMaxObjects || handle == 0 ||
        handle == client_handle)
        return nullptr;
    const auto [made, fresh] = importer->objects.try_emplace(handle, RmObject{.cls = rm_class::kDeviceMemory,
                                                                              .parent = device->second,
                                                                              .gpu = it->second.gpu,
                                                                              .block = std::move(block),
                                                                              .imported = true});
    return fresh ? &made->second : nullptr;
}

std::uint64_t RmTree::memory(std::uint32_t client, std::uint32_t gpu) const {
    const auto it = clients_.find(client);
    if (it == clients_.end()) return 0;
    std::uint64_t sum = 0;
    for (const auto& [handle, object] : it->second.objects)
        if (object.block && !object.imported && object.gpu == gpu) sum += object.block->bytes();
    return sum;
}

RmClient* RmTree::client(std::uint32_t handle) {
    const auto it = clients_.find(handle);
    return it == clients_.end() ? nullptr : &it->second;
}

RmClient* RmTree::client(std::uint32_t handle, std::uint64_t open_file) {
    RmClient* found = client(handle);
    return found && found->open_file == open_file ? found : nullptr;
}

void RmTree::close_file(std::uint64_t open_file, Time at) {
    for (const std::uint32_t handle : clients_of(open_file)) free(handle, handle, at);
}

bool RmTree::free(std::uint32_t client_handle, std::uint32_t handle, Time at) {
    RmClient* found = client(client_handle);
    if (!found) return false;
    if (handle != client_handle && !found->objects.contains(handle)) return false;
    free_subtree(*found, handle, at);
    if (handle == client_handle) clients_.erase(client_handle);
    return true;
}

void RmTree::free_subtree(RmClient& client, std::uint32_t handle, Time at) {
    const auto it = client.objects.find(handle);
    if (it != client.objects.end()) {
        const RmObject object = it->second;
        client.objects.erase(it);
        if (object.group && object.group->shared)
            gpus_[object.gpu].leave_mps(at);
        else if (object.group && object.group->runlist)
            gpus_[object.gpu].remove_group(at, *object.group->runlist);
        std::erase_if(client.devices, [handle](const auto& device) { return device.second == handle; });
        if (object.block) {  // has nothing below it, and there may be many
            if (!object.imported && object.block.use_count() > 1) hand_over(*object.block);
            return;
        }
    }
    std::vector<std::uint32_t> children;
    for (const auto& [child, object] : client.objects)
        if (object.parent == handle || std::ranges::find(object.needs, handle) != object.needs.end())
            children.push_back(child);
    for (const std::uint32_t child : children) free_subtree(client, child, at);
}

// Memory that its owner has freed and that others have imported lives on: it is charged to the first of them.
void RmTree::hand_over(const MemoryBlock& block) {
    for (auto& [client_handle, client] : clients_)
        for (auto& [handle, object] : client.objects)
            if (object.block.get() == &block) {
                object.imported = false;
                return;
            }
}

bool RmTree::has_context(std::uint32_t client, std::uint32_t gpu) const {
    const auto it = clients_.find(client);
    return it != clients_.end() && std::ranges::any_of(it->second.objects, [gpu](const auto& entry) {
               return entry.second.group && entry.second.gpu == gpu;
           });
}

std::vector<std::uint32_t> RmTree::clients_of(std::uint64_t open_file) const {
    std::vector<std::uint32_t> found;
    for (const auto& [handle, client] : clients_)
        if (client.open_file == open_file) found.push_back(handle);
    return found;
}

void RmTree::adopt_devices(std::uint32_t client_handle) {
    RmClient& client = clients_.at(client_handle);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> found;  // start, GPU
    for (const auto& [handle, object] : client.objects)
        if (object.cls == rm_class::kDevice && handle >= kDeviceOffset && handle <= kLastDevice)
            found.emplace_back(handle - kDeviceOffset, object.gpu);
    for (const auto& [start, gpu] : found) {
        if (client.devices.contains(gpu)) continue;
        add_device(client_handle, start, gpu);
        client.next_handle = start + rm::kGpuSpan;
    }
}

// What is there already stays as it is.
void RmTree::add_device(std::uint32_t client_handle, std::uint32_t start, std::uint32_t gpu) {
    RmClient& client = clients_.at(client_handle);
    const std::uint32_t device = start + kDeviceOffset;
    const std::uint32_t subdevice = start + kSubdeviceOffset;
    client.objects.try_emplace(start, RmObject{.cls = 0xCB33, .parent = client_handle, .gpu = gpu});
    client.objects.try_emplace(device, RmObject{.cls = rm_class::kDevice, .parent = client_handle, .gpu = gpu});
    client.objects.try_emplace(subdevice, RmObject{.cls = rm_class::kSubdevice, .parent = device, .gpu = gpu});
    for (const Placed& placed : kDeviceObjects)
        client.objects.try_emplace(
            start + placed.offset,
            RmObject{
                .cls = placed.cls, .parent = placed.parent == Placed::kUnderDevice ? device : subdevice, .gpu = gpu});
    client.devices[gpu] = device;
}

std::uint32_t RmTree::add_group(RmClient& client, std::uint32_t handle, std::uint32_t gpu, bool compute) {
    const Time slice = compute ? timing::kComputeSlice : timing::kCopySlice;
    RmGroup group{next_group_id_++, static_cast<std::uint64_t>(slice / timing::kMicrosecond), std::nullopt};
    if (compute) group.runlist = gpus_[gpu].runlist.add_group(slice);
    client.objects[handle] = {
        .cls = rm_class::kChannelGroup, .parent = client.devices.at(gpu), .gpu = gpu, .group = group};
    return handle;
}

std::vector<std::uint32_t> RmTree::add_context(std::uint32_t client_handle, std::uint32_t gpu) {
    RmClient& client = clients_.at(client_handle);
    if (!client.devices.contains(gpu)) {
        add_device(client_handle, client.next_handle, gpu);
        client.next_handle += rm::kGpuSpan;
    }
    const std::uint32_t device = client.devices.at(gpu);
    const std::uint32_t subdevice = device + (kSubdeviceOffset - kDeviceOffset);
    const std::uint32_t start = client.next_handle;
    client.next_handle += kContextSpan;

    std::vector<std::uint32_t> groups{add_group(client, start, gpu, true)};
    client.objects[start + kShareOffset] = {.cls = rm_class::kContextShare, .parent = start, .gpu = gpu};
    const auto add_channel = [&](std::uint32_t handle, std::uint32_t group, std::uint32_t number, bool compute) {
        client.objects[handle] = {.cls = rm_class::kHopperChannel,
                                  .parent = group,
                                  .gpu = gpu,
                                  .channel = number,
                                  .context_id = next_context_id_++};
        std::uint32_t engine = handle + 1;
        if (compute) client.objects[engine++] = {.cls = rm_class::kHopperCompute, .parent = handle, .gpu = gpu};
        client.objects[engine] = {.cls = rm_class::kHopperCopy, .parent = handle, .gpu = gpu};
    };
    for (std::uint32_t i = 0; i < kComputeChannelsAt.size(); ++i) {
        add_channel(start + kComputeChannelsAt[i], start, i, true);
        if (i > 1) client.objects[start + kComputeChannelsAt[i] - 1] = {.cls = 0x3E, .parent = device, .gpu = gpu};
    }
    for (const std::uint32_t offset : kCopyGroups) {
        const std::uint32_t group = add_group(client, start + offset, gpu, false);
        for (std::uint32_t i = 0; i < kCopyChannels.size(); ++i) {
            add_channel(group + kCopyChannels[i], group, i, false);
            client.objects[group + kCopyChannels[i] - 1] = {.cls = 0x3E, .parent = device, .gpu = gpu};
        }
        groups.push_back(group);
    }
    for (const Placed& placed : kContextObjects)
        client.objects[start + placed.offset] = {
            .cls = placed.cls, .parent = placed.parent == Placed::kUnderDevice ? device : subdevice, .gpu = gpu};
    return groups;
}

void RmTree::remove_context(std::uint32_t client_handle, std::uint32_t compute_group, Time at) {
    RmClient* found = client(client_handle);
    if (!found) return;
    for (std::uint32_t handle = compute_group; handle < compute_group + kContextSpan; ++handle)
        free_subtree(*found, handle, at);
}

bool RmTree::add_object(std::uint32_t client_handle, std::uint32_t& handle, RmObject object) {
    RmClient& found = clients_.at(client_handle);
    if (handle == 0) handle = found.next_handle++;
    return handle != client_handle && found.objects.emplace(handle, std::move(object)).second;
}

}  // namespace emulator
