// The device memory of one process on one GPU: addresses out of a sparse range, bytes out of the GPU's capacity.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "gpu.hpp"
#include "shared_memory.hpp"

namespace emulator {

class Arena {
  public:
    static constexpr std::uint64_t kAlignment = 512;  // what CUDA promises is 256; what it does is 512

    explicit Arena(Gpu& gpu)
        : gpu_(&gpu),
          memory_("emulated-gpu-memory", 2 * gpu.memory_total),  // room for holes between allocations
          base_(wire::kDeviceAddressBase + gpu.index * wire::kDeviceAddressStride) {}
    Arena(Arena&&) = default;
    ~Arena() {
        if (memory_.valid())
            for (const auto& [offset, bytes] : used_) gpu_->memory_used -= bytes;
    }

    bool valid() const { return memory_.valid(); }
    int fd() const { return memory_.fd(); }
    std::uint64_t size() const { return memory_.size(); }
    std::uint64_t base() const { return base_; }
    std::byte* at(std::uint64_t address) const { return memory_.data() + (address - base_); }

    // Bytes taken by this process.
    std::uint64_t used() const {
        std::uint64_t sum = 0;
        for (const auto& [offset, bytes] : used_) sum += bytes;
        return sum;
    }

    // Nothing when the GPU's memory is used up.
    std::optional<std::uint64_t> allocate(std::uint64_t bytes) {
        if (bytes == 0 || bytes > gpu_->memory_total) return std::nullopt;
        bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
        if (bytes > gpu_->memory_total - gpu_->memory_used) return std::nullopt;
        std::uint64_t offset = 0;
        for (const auto& [start, size] : used_) {
            if (start - offset >= bytes) break;
            offset = start + size;
        }
        if (offset + bytes > memory_.size()) return std::nullopt;
        used_.emplace(offset, bytes);
        gpu_->memory_used += bytes;
        return base_ + offset;
    }

    // False when nothing was allocated at `address`.
    bool free(std::uint64_t address) {
        const auto it = used_.find(address - base_);
        if (it == used_.end()) return false;
        memory_.discard(it->first, it->second);
        gpu_->memory_used -= it->second;
        used_.erase(it);
        return true;
    }

  private:
    Gpu* gpu_;
    SharedMemory memory_;
    std::uint64_t base_;
    std::map<std::uint64_t, std::uint64_t> used_;  // offset -> bytes
};

}  // namespace emulator
