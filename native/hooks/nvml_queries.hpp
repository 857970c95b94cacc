// NVML's answers about memory and processes, as far as the tree is concerned. NVML may be alone in the process.
#pragma once

#include <utility>

#include "core/pages.hpp"
#include "core/uuid.hpp"
#include "hooks/memory.hpp"
#include "hooks/own_limits.hpp"
#include "region/layout.hpp"

namespace runlist::hooks {

template <int row>
int device_of(nvmlDevice_t device) {
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    std::uint8_t uuid[16];
    if (call_real<Id::nvmlDeviceGetUUID, row>(device, text, unsigned{sizeof(text)}) != NVML_SUCCESS) return -1;
    if (!parse_gpu_uuid(text, uuid)) return -1;
    const int index = region::quota.device(uuid);
    unsigned number = 0;
    if (has_own_limits && call_real<Id::nvmlDeviceGetIndex, row>(device, &number) == NVML_SUCCESS) {
        apply_own_limits(index, static_cast<int>(number));
    }
    return index;
}

// What the tree uses; free as cuMemGetInfo has it. Memory that the driver reserved for itself is not of the limit.
template <typename Memory>
void show_budget(const Budget& budget, Memory& memory) {
    memory.total = std::min<unsigned long long>(memory.total, budget.limit);
    memory.used = std::min<unsigned long long>(memory.total, budget.used);
    memory.free = std::min<unsigned long long>(memory.free, memory.total - memory.used);
    if constexpr (requires { memory.reserved; }) {
        memory.reserved = std::min<unsigned long long>(memory.reserved, memory.total - memory.used - memory.free);
    }
}

template <Id id, int row, typename Type = typename Function<id>::Type>
struct MemoryInfo;

template <Id id, int row, typename Memory>
struct MemoryInfo<id, row, nvmlReturn_t(nvmlDevice_t, Memory*)> {
    static nvmlReturn_t DECLDIR call(nvmlDevice_t device, Memory* memory) {
        const nvmlReturn_t result = call_real<id, row>(device, memory);
        if (Budget budget; result == NVML_SUCCESS && region::quota.on() && budget_of(device_of<row>(device), budget)) {
            show_budget(budget, *memory);
        }
        return result;
    }
};

// A piece of memory for as long as a call lasts; null if there is none.
class Scratch {
  public:
    explicit Scratch(std::size_t bytes) : memory_(map_pages(bytes)), bytes_(bytes) {}
    ~Scratch() {
        if (memory_ != nullptr) unmap_pages(memory_, bytes_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    void* get() const { return memory_; }

  private:
    void* memory_;
    std::size_t bytes_;
};

// NVML's lists, of processes of the tree only. The caller's room is compared with what is left of the list, so the real
// one is read into memory of ours.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct RunningProcesses;

template <Id id, int row, typename Process>
struct RunningProcesses<id, row, nvmlReturn_t(nvmlDevice_t, unsigned*, Process*)> {
    static nvmlReturn_t DECLDIR call(nvmlDevice_t device, unsigned* count, Process* processes) {
        const int index = region::quota.on() && count != nullptr ? device_of<row>(device) : -1;
        if (index < 0 || region::quota.limit(index) == region::kNoLimit) {
            return call_real<id, row>(device, count, processes);
        }
        unsigned found = 0;
        nvmlReturn_t result = call_real<id, row>(device, &found, static_cast<Process*>(nullptr));
        for (int attempt = 0; result == NVML_ERROR_INSUFFICIENT_SIZE && attempt < kAttempts; ++attempt) {
            unsigned room = found + kSpare;  // some may start meanwhile
            const Scratch scratch(room * sizeof(Process));
            auto* all = static_cast<Process*>(scratch.get());
            if (all == nullptr) return NVML_ERROR_MEMORY;
            found = room;
            result = call_real<id, row>(device, &found, all);
            if (result == NVML_SUCCESS) return give(index, all, found, count, processes);
        }
        if (result == NVML_SUCCESS) *count = 0;
        return result;
    }

  private:
    static constexpr int kAttempts = 4;
    static constexpr unsigned kSpare = 32;

    static nvmlReturn_t give(int device, Process* all, unsigned found, unsigned* count, Process* processes) {
        unsigned kept = 0;
        for (unsigned i = 0; i < found; ++i) {
            const std::uint64_t used = region::quota.used_by(device, static_cast<std::int32_t>(all[i].pid));
            if (used == 0) continue;
            all[kept] = all[i];
            all[kept++].usedGpuMemory = used;
        }
        const unsigned room = std::exchange(*count, kept);
        if (kept > room) return NVML_ERROR_INSUFFICIENT_SIZE;
        if (kept > 0 && processes == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
        std::copy(all, all + kept, processes);
        return NVML_SUCCESS;
    }
};

}  // namespace runlist::hooks
