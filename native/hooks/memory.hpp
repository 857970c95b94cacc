// What a program asks about memory: the limit as total, and as free what is left of it and of the GPU.
#pragma once

#include <algorithm>

#include "hooks/functions.hpp"
#include "region/quota.hpp"

namespace runlist::hooks {

// What is known of a limited GPU's memory, in bytes.
struct Budget {
    std::uint64_t limit;
    std::uint64_t used;

    std::uint64_t left() const { return limit > used ? limit - used : 0; }
};

// False if that GPU (index in the region, -1 for none) has no limit.
bool budget_of(int device, Budget& budget);

// A GPU's index in the region by the copy's ordinal; -1 while it is not known.
inline constexpr int kOrdinals = 64;
extern constinit std::atomic<std::int8_t> known_devices[kRows][kOrdinals];  // index + 1

template <int row>
int device_of(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= kOrdinals) return -1;
    auto& known = known_devices[row][ordinal];
    if (const int index = known.load(std::memory_order_relaxed) - 1; index >= 0) return index;
    CUuuid uuid{};
    // The first form answers with the GPU's UUID also for a slice of one (MIG).
    if (call_real<Id::cuDeviceGetUuid, row>(&uuid, ordinal) != CUDA_SUCCESS &&
        call_real<Id::cuDeviceGetUuid_v2, row>(&uuid, ordinal) != CUDA_SUCCESS) {
        return -1;
    }
    std::uint8_t bytes[sizeof(uuid.bytes)];
    std::copy(std::begin(uuid.bytes), std::end(uuid.bytes), bytes);
    const int index = region::quota.device(bytes);
    known.store(static_cast<std::int8_t>(index + 1), std::memory_order_relaxed);
    return index;
}

template <int row>
int current_device() {
    CUdevice ordinal = -1;
    return call_real<Id::cuCtxGetDevice, row>(&ordinal) == CUDA_SUCCESS ? device_of<row>(ordinal) : -1;
}

// The oldest forms count in 32 bits.
template <typename Bytes>
void lower(Bytes* bytes, std::uint64_t limit) {
    if (bytes == nullptr) return;
    *bytes = static_cast<Bytes>(std::min<std::uint64_t>(*bytes, limit));
}

template <Id id, int row, typename Type = typename Function<id>::Type>
struct MemGetInfo;

template <Id id, int row, typename Bytes>
struct MemGetInfo<id, row, CUresult(Bytes*, Bytes*)> {
    static CUresult CUDAAPI call(Bytes* free, Bytes* total) {
        const CUresult result = call_real<id, row>(free, total);
        if (Budget budget; result == CUDA_SUCCESS && region::quota.on() && budget_of(current_device<row>(), budget)) {
            lower(total, budget.limit);
            lower(free, budget.left());
        }
        return result;
    }
};

template <Id id, int row, typename Type = typename Function<id>::Type>
struct TotalMem;

template <Id id, int row, typename Bytes>
struct TotalMem<id, row, CUresult(Bytes*, CUdevice)> {
    static CUresult CUDAAPI call(Bytes* total, CUdevice ordinal) {
        const CUresult result = call_real<id, row>(total, ordinal);
        if (result == CUDA_SUCCESS && region::quota.on()) {
            const int device = device_of<row>(ordinal);
            if (device >= 0) lower(total, region::quota.limit(device));
        }
        return result;
    }
};

}  // namespace runlist::hooks
