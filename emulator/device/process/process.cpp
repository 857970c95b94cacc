#include "device/process/process.hpp"

#include <cuda.h>

#include <algorithm>
#include <set>

#include "model/timing.hpp"

namespace emulator {
namespace {

constexpr std::size_t kMaxHostAllocations = 4096;
constexpr std::uint64_t kMaxHostBytes = 1ULL << 40;
constexpr int kMpsBelowNormal = 100;            // further than any stream priority reaches
constexpr std::uint64_t kAddressesPerByte = 4;  // device addresses that a process may reserve, for each byte of memory
constexpr std::uint32_t kLastHandle = 0xFFFFF000;  // leaves room for the objects of one more context

Process::Answer refused(CUresult result) { return {.reply = {.result = result}}; }

std::uint64_t address_limit(const std::vector<Gpu>& gpus) {
    std::uint64_t bytes = 0;
    for (const Gpu& gpu : gpus) bytes += kAddressesPerByte * gpu.memory.total();
    return bytes;
}

bool is_device_range(std::uint64_t address, std::uint64_t bytes) {
    return address >= wire::kDeviceAddressBase && bytes <= wire::kDeviceAddressBytes &&
           address - wire::kDeviceAddressBase <= wire::kDeviceAddressBytes - bytes;
}

}  // namespace

Process::Process(pid_t pid, uid_t uid, std::vector<Gpu>& gpus, RmTree& rm, SharedEvents& events)
    : pid_(pid),
      uid_(uid),
      gpus_(gpus),
      rm_(rm),
      shared_(events),
      memory_(address_limit(gpus)),
      streams_(gpus, memory_) {}

Process::~Process() { end(gpus_.empty() ? 0 : gpus_.front().runlist.now()); }

std::optional<Process::Answer> Process::handle(const wire::Request& request, Time now) {
    if (request.call != wire::Call::kHello && request.call != wire::Call::kMemoryInfo && !page_.valid()) {
        broken_ = true;
        return std::nullopt;
    }
    switch (request.call) {
        case wire::Call::kHello:
            return hello(request);
        case wire::Call::kOpenContext:
            return open_context(request, now);
        case wire::Call::kCloseContext:
            return close_context(request, now);
        case wire::Call::kReserve: {
            const bool reserved =
                is_device_range(request.address, request.bytes) && memory_.reserve(request.address, request.bytes);
            return refused(reserved ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
        }
        case wire::Call::kRelease: {
            const bool released = is_device_range(request.address, 0) && memory_.remove(request.address);
            return refused(released ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
        }
        case wire::Call::kMap:
            return map(request);
        case wire::Call::kUnmap: {
            const bool unmapped = memory_.unmap(request.address, request.bytes);
            return refused(unmapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
        }
        case wire::Call::kExport:
            return export_memory(request);
        case wire::Call::kImport:
            return import_memory(request);
        case wire::Call::kShareEvent:
            return share_event(request);
        case wire::Call::kOpenEvent:
            return open_event(request);
        case wire::Call::kForgetEvent:
        case wire::Call::kRecordEvent:
        case wire::Call::kAwaitEvent:
        case wire::Call::kQueryEvent:
            return use_event(request, now);
        case wire::Call::kMemoryInfo:
            return memory_info(request);
        case wire::Call::kListProcesses:
        case wire::Call::kListSamples:
            break;  // the server's
        case wire::Call::kAllocateHost:
            return allocate_host(request);
        case wire::Call::kFreeHost:
            return free_host(request);
        case wire::Call::kOpenStream:
            return open_stream(request);
        case wire::Call::kCloseStream:
            return refused(streams_.close(request.stream, now) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
        case wire::Call::kSubmit:
            streams_.submit(request, now);
            return std::nullopt;
        case wire::Call::kWatch:
            streams_.watch(request);
            return std::nullopt;
        case wire::Call::kHostDone:
            streams_.host_done(request, now);
            return std::nullopt;
    }
    broken_ = true;
    return std::nullopt;
}

Process::Answer Process::hello(const wire::Request& request) {
    if (page_.valid() || !rm_.client(request.hello.client)) return refused(CUDA_ERROR_INVALID_VALUE);
    page_ = SharedMemory("emulated-gpu-control", sizeof(wire::ControlPage));
    if (!page_.valid()) return refused(CUDA_ERROR_OPERATING_SYSTEM);
    streams_.share(page());
    client_ = request.hello.client;
    rm_.adopt_devices(client_);
    mps_ = request.hello.mps != 0;
    base_priority_ = mps_ && request.hello.mps_priority != 0 ? kMpsBelowNormal : 0;
    return {.reply = {.value = static_cast<std::uint32_t>(gpus_.size())}, .fd = page_.fd()};
}

Process::Answer Process::open_context(const wire::Request& request, Time now) {
    if (request.gpu >= gpus_.size()) return refused(CUDA_ERROR_INVALID_DEVICE);
    const RmClient* client = rm_.client(client_);
    if (!client) return refused(CUDA_ERROR_NOT_INITIALIZED);
    if (client->next_handle > kLastHandle) return refused(CUDA_ERROR_OUT_OF_MEMORY);
    std::uint32_t slot = 0;
    while (slot < wire::kContextSlots && contexts_.contains(slot)) ++slot;
    if (slot == wire::kContextSlots) return refused(CUDA_ERROR_OUT_OF_MEMORY);
    Answer answer{.reply = {.value = slot}};
    const std::uint32_t group = rm_.add_context(client_, request.gpu).front();
    RmGroup& own = *rm_.client(client_)->objects.at(group).group;
    Gpu& gpu = gpus_[request.gpu];
    if (mps_)
        join_mps(gpu, own, now);
    else
        gpu.switch_log.name(*own.runlist, {pid_, uid_, own.id});
    contexts_[slot] = {request.gpu, group, *own.runlist};
    page().context_error[slot] = CUDA_SUCCESS;
    return answer;
}

// A client of MPS runs in the server's group: what RM shows as its own has that group's id, and controls on it are for
// all clients. There is no server process: the first client stands for it, also in the context-switch log.
void Process::join_mps(Gpu& gpu, RmGroup& own, Time now) {
    if (gpu.mps_clients++ == 0) {
        gpu.mps_group = gpu.runlist.add_group(timing::kComputeSlice);
        gpu.mps_group_id = own.id;
        gpu.switch_log.name(*gpu.mps_group, {pid_, uid_, own.id});
    }
    gpu.remove_group(now, *own.runlist);
    own = {.id = gpu.mps_group_id, .timeslice_us = own.timeslice_us, .runlist = gpu.mps_group, .shared = true};
}

Process::Answer Process::close_context(const wire::Request& request, Time now) {
    const auto it = contexts_.find(request.context);
    if (it == contexts_.end()) return refused(CUDA_ERROR_INVALID_CONTEXT);
    streams_.close_context(request.context, now);
    rm_.remove_context(client_, it->second.compute_group, now);
    contexts_.erase(it);
    return {};
}

Process::Answer Process::map(const wire::Request& request) {
    const RmObject* object = rm_.find(client_, request.memory.handle);
    if (!object || !object->block) return refused(CUDA_ERROR_INVALID_HANDLE);
    const bool mapped = memory_.map(request.address, request.bytes, object->block, request.memory.offset);
    return refused(mapped ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

Process::Answer Process::export_memory(const wire::Request& request) {
    const RmObject* object = rm_.find(client_, request.memory.handle);
    if (!object || !object->block) return refused(CUDA_ERROR_INVALID_HANDLE);
    const auto key = rm_.export_memory(*object);
    return key ? Answer{.reply = {.key = *key}} : refused(CUDA_ERROR_OPERATING_SYSTEM);
}

Process::Answer Process::import_memory(const wire::Request& request) {
    const RmObject* made = rm_.import_memory(client_, request.import.handle, request.import.key);
    if (!made) return refused(CUDA_ERROR_INVALID_VALUE);
    return {.reply = {.gpu = made->gpu, .bytes = made->block->bytes()}};
}

Process::Answer Process::share_event(const wire::Request& request) {
    Answer answer{};
    auto made = shared_.make(answer.reply.key);
    if (!made || request.sharing.event >= wire::kEventSlots) return refused(CUDA_ERROR_OPERATING_SYSTEM);
    events_[request.sharing.event] = std::move(made);
    return answer;
}

Process::Answer Process::open_event(const wire::Request& request) {
    auto found = shared_.find(request.sharing.key);
    if (!found || request.sharing.event >= wire::kEventSlots) return refused(CUDA_ERROR_INVALID_VALUE);
    events_[request.sharing.event] = std::move(found);
    return {};
}

Process::Answer Process::use_event(const wire::Request& request, Time now) {
    const auto found = events_.find(request.sharing.event);
    if (found == events_.end()) return refused(CUDA_ERROR_INVALID_HANDLE);
    const std::shared_ptr<SharedEvent> event = found->second;
    if (request.call == wire::Call::kForgetEvent) {
        events_.erase(found);
    } else if (request.call == wire::Call::kQueryEvent) {
        return {.reply = {.value = event->has_happened(event->last()) ? 1U : 0U}};
    } else {
        wire::Request queued = request;
        queued.call = wire::Call::kSubmit;
        queued.operation =
            request.call == wire::Call::kRecordEvent ? wire::Operation::kRecord : wire::Operation::kAwait;
        streams_.submit(queued, now, event);
    }
    return {};
}

Process::Answer Process::memory_info(const wire::Request& request) const {
    if (request.gpu >= gpus_.size()) return refused(CUDA_ERROR_INVALID_DEVICE);
    const Gpu& gpu = gpus_[request.gpu];
    Answer answer{.reply = {.value = static_cast<std::uint32_t>(gpus_.size()),
                            .bytes = gpu.memory.total() - gpu.memory.used(),
                            .total = gpu.memory.total()}};
    std::ranges::copy(gpu.uuid, answer.reply.uuid);
    return answer;
}

Process::Answer Process::allocate_host(const wire::Request& request) {
    if (request.bytes == 0 || request.bytes > kMaxHostBytes || request.address >= wire::kDeviceAddressBase)
        return refused(CUDA_ERROR_INVALID_VALUE);
    if (host_memory_.size() >= kMaxHostAllocations) return refused(CUDA_ERROR_OUT_OF_MEMORY);
    SharedMemory made("emulated-gpu-host", request.bytes);
    if (!made.valid()) return refused(CUDA_ERROR_OUT_OF_MEMORY);
    if (!memory_.add(request.address, made.data(), request.bytes)) return refused(CUDA_ERROR_INVALID_VALUE);
    const int fd = made.fd();
    host_memory_.emplace(request.address, std::move(made));
    return {.reply = {}, .fd = fd};
}

Process::Answer Process::free_host(const wire::Request& request) {
    if (host_memory_.erase(request.address) == 0) return refused(CUDA_ERROR_INVALID_VALUE);
    memory_.remove(request.address);
    return {};
}

Process::Answer Process::open_stream(const wire::Request& request) {
    const auto context = contexts_.find(request.context);
    if (context == contexts_.end()) return refused(CUDA_ERROR_INVALID_CONTEXT);
    const int priority = std::clamp(request.priority, -kMpsBelowNormal / 2, kMpsBelowNormal / 2);
    const bool opened = streams_.open(request, context->second.gpu, context->second.group, base_priority_ + priority);
    return refused(opened ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

void Process::end(Time now) {
    streams_.end(now);
    contexts_.clear();
}

bool Process::lost_objects() const {
    const RmClient* client = rm_.client(client_);
    return std::ranges::any_of(contexts_, [client](const auto& entry) {
        return !client || !client->objects.contains(entry.second.compute_group);
    });
}

void Process::describe(std::uint32_t gpu, Time now, wire::ListedProcess& out) const {
    if (std::ranges::none_of(contexts_, [gpu](const auto& entry) { return entry.second.gpu == gpu; })) return;
    out.mps |= mps_ ? 1 : 0;
    if (const wire::BusySample sample = newest_sample(gpu, now); sample.end > out.sample.end) out.sample = sample;
}

wire::BusySample Process::newest_sample(std::uint32_t gpu, Time now) const {
    std::set<GroupId> groups;  // under MPS contexts share one
    for (const auto& [slot, context] : contexts_)
        if (context.gpu == gpu) groups.insert(context.group);
    const std::int64_t last = BusyHistory::last_period(now);
    for (std::int64_t period = last; period > last - timing::kSamples; --period) {
        Time busy = 0;
        for (const GroupId group : groups) busy += gpus_[gpu].runlist.busy(group).busy(period);
        if (busy > 0) return {.end = BusyHistory::end_of(period), .percent = BusyHistory::percent(busy)};
    }
    return {};
}

}  // namespace emulator
