#include "cuda/memory/pool.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "cuda/execution/queue.hpp"

namespace emulator::cuda {
namespace {

constexpr std::size_t kInternalDependencies = 2;  // among Pool::reuse

struct Pools {
    std::set<Pool*> all;
    std::vector<Pool*> defaults;  // by GPU
};

Pools& pools() { return kept<Pools>(); }

// Takes back what was freed in streams that have come past it.
void reclaim(Driver& driver, Pool& pool) {
    std::erase_if(pool.pending, [&](const Pool::Pending& pending) {
        if (!is_done(driver, pending.point)) return false;
        pool.heap.give(pending.address);
        return true;
    });
}

// What has been freed and is not reclaimed yet, of one stream or, given none, of any: the smallest that is large
// enough, whole, and not larger than `largest`. Nothing when there is none.
std::optional<Pool::Pending> reuse(Pool& pool, std::optional<std::uint32_t> stream, std::uint64_t bytes,
                                   std::uint64_t largest) {
    auto best = pool.pending.end();
    std::uint64_t best_size = largest;
    for (auto it = pool.pending.begin(); it != pool.pending.end(); ++it) {
        const std::uint64_t size = pool.heap.size_of(it->address);
        if ((stream && it->point.stream != *stream) || size < bytes || size > best_size) continue;
        best = it;
        best_size = size;
    }
    if (best == pool.pending.end()) return std::nullopt;
    const Pool::Pending found = *best;
    pool.pending.erase(best);
    return found;
}

// What was freed in this very stream can be used in it at once; then comes what is free, or is new. When there is
// nothing new to be had, the stream waits for what others have freed.
CUresult find_room(Driver& driver, Pool& pool, Stream& stream, std::uint64_t bytes, std::uint64_t& address) {
    constexpr std::uint64_t kWaste = wire::kPageBytes;
    reclaim(driver, pool);
    if (const auto same = reuse(pool, stream.slot, bytes, bytes + std::max(bytes, kWaste))) {
        address = same->address;
        return CUDA_SUCCESS;
    }
    CUresult result = pool.heap.take(driver, bytes, address, pool.limit);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && pool.heap.trim(driver, 0) > 0)
        result = pool.heap.take(driver, bytes, address, pool.limit);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !pool.reuse[kInternalDependencies]) return result;
    const auto any = reuse(pool, std::nullopt, bytes, ~0ULL);
    if (!any) return result;
    address = any->address;
    return append_wait(driver, stream, any->point);
}

void delete_if_over(Driver& driver, Pool& pool) {
    if (!pool.destroyed || pool.heap.used() != 0) return;
    pool.heap.clear(driver);
    pools().all.erase(&pool);
    delete &pool;
}

// Gives back what nothing uses: all of it on a GPU that is full or, given none, what is more than the pools are to
// keep. Was there any?
bool trim(Driver& driver, std::optional<std::uint32_t> full = std::nullopt) {
    std::uint64_t given = 0;
    for (Pool* pool : std::vector<Pool*>(pools().all.begin(), pools().all.end())) {
        if (full && pool->heap.gpu() != *full) continue;
        reclaim(driver, *pool);
        given += pool->heap.trim(driver, full ? 0 : pool->threshold);
        delete_if_over(driver, *pool);
    }
    return given > 0;
}

Pool& make_pool(std::uint32_t gpu) { return **pools().all.insert(new Pool{.heap = Heap(gpu)}).first; }

void make_defaults(Driver& driver) {
    if (!pools().defaults.empty()) return;
    for (std::uint32_t gpu = 0; gpu < driver.connection.gpus(); ++gpu) {
        pools().defaults.push_back(&make_pool(gpu));
        pools().defaults.back()->is_default = true;
    }
    driver.on_full = [&driver](std::uint32_t gpu) { return trim(driver, gpu); };
    driver.on_synchronized = [&driver] { trim(driver); };
}

}  // namespace

Pool& default_pool(Driver& driver, std::uint32_t gpu) {
    make_defaults(driver);
    return *pools().defaults.at(gpu);
}

Pool* find_pool(CUmemoryPool handle) {
    Pool* pool = named(pools().all, handle);
    return pool && !pool->destroyed ? pool : nullptr;
}

CUresult allocate_from(Driver& driver, Pool& pool, Stream& stream, std::uint64_t bytes, std::uint64_t& address) {
    EMULATOR_TRY(find_room(driver, pool, stream, bytes, address));
    pool.reserved_high = std::max(pool.reserved_high, pool.heap.reserved());
    pool.used_high = std::max(pool.used_high, pool.heap.used());
    return CUDA_SUCCESS;
}

void free_in_order(Pool& pool, std::uint64_t address, Point point) { pool.pending.push_back({address, point}); }

void free_from(Driver& driver, Pool& pool, std::uint64_t address) {
    pool.heap.give(address);
    if (pool.heap.reserved() > pool.threshold) pool.heap.trim(driver, pool.threshold);
    delete_if_over(driver, pool);
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    EMULATOR_ENTER();
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = reinterpret_cast<CUmemoryPool>(&default_pool(driver, static_cast<std::uint32_t>(device)));
    return CUDA_SUCCESS;
}

// A device's pool is its default one: it cannot be set.
CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}

// Pools cannot be shared with other processes.
CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* wanted) {
    EMULATOR_ENTER();
    if (!handle || !wanted || wanted->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE || wanted->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!driver.has(wanted->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    make_defaults(driver);
    Pool& pool = make_pool(static_cast<std::uint32_t>(wanted->location.id));
    if (wanted->maxSize != 0) pool.limit = whole_pages(wanted->maxSize);
    *handle = reinterpret_cast<CUmemoryPool>(&pool);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
    EMULATOR_ENTER();
    Pool* pool = find_pool(handle);
    if (!pool || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    pool->destroyed = true;
    pool->threshold = 0;
    trim(driver);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, std::size_t keep) {
    EMULATOR_ENTER();
    Pool* pool = find_pool(handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    reclaim(driver, *pool);
    pool->heap.trim(driver, keep);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    EMULATOR_ENTER();
    Pool* pool = find_pool(handle);
    if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *static_cast<int*>(value);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            pool->threshold = *static_cast<cuuint64_t*>(value);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            // It can only be made to begin again.
            if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
            if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
                pool->used_high = pool->heap.used();
            else
                pool->reserved_high = pool->heap.reserved();
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    EMULATOR_ENTER();
    Pool* pool = find_pool(handle);
    if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
    reclaim(driver, *pool);
    const auto answer = [value](std::uint64_t bytes) {
        *static_cast<cuuint64_t*>(value) = bytes;
        return CUDA_SUCCESS;
    };
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            *static_cast<int*>(value) = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            return answer(pool->threshold);
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
            return answer(pool->heap.reserved());
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
            return answer(pool->reserved_high);
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
            return answer(pool->heap.used());
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            return answer(pool->used_high);
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}
