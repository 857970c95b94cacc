#include "cuda/memory_pool.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "cuda/capture.hpp"
#include "cuda/graph_memory.hpp"
#include "cuda/memory.hpp"

namespace emulator::cuda {
namespace {

constexpr std::size_t kInternalDependencies = 2;  // among Pool::reuse

// Guarded by the driver's lock.
struct Pools {
    std::set<Pool*> all;
    std::vector<Pool*> defaults;  // by GPU
};

Pools& pools() {
    static auto* const known = new Pools;  // never destroyed, as the driver
    return *known;
}

void make_defaults(const Driver& driver) {
    while (pools().defaults.size() < driver.primaries.size()) {
        auto* pool = new Pool{.heap = Heap(static_cast<std::uint32_t>(pools().defaults.size())), .is_default = true};
        pools().all.insert(pool);
        pools().defaults.push_back(pool);
    }
}

// Takes back what was freed in streams that have come past it.
void reclaim(Driver& driver, Pool& pool) {
    std::erase_if(pool.pending, [&](const Pool::Pending& pending) {
        if (!is_done(driver, pending.stream, pending.sequence)) return false;
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
        if ((stream && it->stream != *stream) || size < bytes || size > best_size) continue;
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
    return append_wait(driver, stream, any->stream, any->sequence);
}

void delete_if_over(Driver& driver, Pool& pool) {
    if (!pool.destroyed || pool.heap.used() != 0) return;
    pool.heap.clear(driver);
    pools().all.erase(&pool);
    delete &pool;
}

std::vector<Pool*> all_pools() { return {pools().all.begin(), pools().all.end()}; }

}  // namespace

Pool& default_pool(const Driver& driver, std::uint32_t gpu) {
    make_defaults(driver);
    return *pools().defaults.at(gpu);
}

CUresult allocate_from(Driver& driver, Pool& pool, Context& context, Stream& stream, std::uint64_t bytes,
                       std::uint64_t& address) {
    if (const CUresult result = find_room(driver, pool, stream, bytes, address); result != CUDA_SUCCESS) return result;
    pool.reserved_high = std::max(pool.reserved_high, pool.heap.reserved());
    pool.used_high = std::max(pool.used_high, pool.heap.used());
    driver.memory.emplace(address, Allocation{bytes, &context, Allocation::Kind::kPool, {}, &pool});
    return CUDA_SUCCESS;
}

void free_in_order(Driver& driver, std::uint64_t address, const Stream& stream) {
    const auto it = driver.memory.find(address);
    Pool& pool = *it->second.pool;
    driver.memory.erase(it);
    pool.pending.push_back({address, stream.slot, stream.submitted});
}

void free_from(Driver& driver, Pool& pool, std::uint64_t address) {
    pool.heap.give(address);
    if (pool.heap.reserved() > pool.threshold) pool.heap.trim(driver, pool.threshold);
    delete_if_over(driver, pool);
}

bool give_unused_memory(Driver& driver, std::uint32_t gpu) {
    std::uint64_t given = 0;
    for (Pool* pool : all_pools()) {
        if (pool->heap.gpu() != gpu) continue;
        reclaim(driver, *pool);
        given += pool->heap.trim(driver, 0);
        delete_if_over(driver, *pool);
    }
    return given > 0;
}

void trim_pools(Driver& driver) {
    for (Pool* pool : all_pools()) {
        reclaim(driver, *pool);
        pool->heap.trim(driver, pool->threshold);
        delete_if_over(driver, *pool);
    }
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

namespace {

// nullptr for a handle that names none, or one that the program has destroyed.
Pool* from(CUmemoryPool handle) {
    auto* pool = reinterpret_cast<Pool*>(handle);
    return pools().all.contains(pool) && !pool->destroyed ? pool : nullptr;
}

CUmemoryPool to(Pool* pool) { return reinterpret_cast<CUmemoryPool>(pool); }

bool valid(const Driver& driver, int device) {
    return device >= 0 && static_cast<std::size_t>(device) < driver.primaries.size();
}

CUresult allocate_in_order(Driver& driver, Context& context, CUdeviceptr* address, std::size_t bytes, Pool& pool,
                           CUstream handle) {
    Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (!address || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        std::uint64_t made = 0;
        const CUresult result = capture_allocation(driver, *stream, bytes, made);
        if (result == CUDA_SUCCESS) *address = made;
        return result;
    }
    if (const CUresult error = context_error(driver, context); error != CUDA_SUCCESS) return error;
    std::uint64_t made = 0;
    const CUresult result = allocate_from(driver, pool, context, *stream, bytes, made);
    if (result == CUDA_SUCCESS) *address = made;
    return result;
}

}  // namespace

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
    EMULATOR_ENTER_CONTEXT();
    Pool& pool = default_pool(driver, static_cast<std::uint32_t>(context.gpu));
    return allocate_in_order(driver, context, address, bytes, pool, stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle,
                                         CUstream stream) {
    EMULATOR_ENTER_CONTEXT();
    Pool* pool = from(handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    return allocate_in_order(driver, context, address, bytes, *pool, stream);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (address == 0) return CUDA_SUCCESS;
    if (stream->capture) return capture_free(*stream, address);
    if (free_graph_memory(address)) return CUDA_SUCCESS;
    const auto found = driver.memory.find(address);
    if (found == driver.memory.end() || found->second.kind != Allocation::Kind::kPool) return CUDA_ERROR_INVALID_VALUE;
    free_in_order(driver, address, *stream);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    EMULATOR_ENTER();
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(driver, device)) return CUDA_ERROR_INVALID_DEVICE;
    *pool = to(&default_pool(driver, static_cast<std::uint32_t>(device)));
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
    if (!valid(driver, wanted->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    make_defaults(driver);
    auto* pool = new Pool{.heap = Heap(static_cast<std::uint32_t>(wanted->location.id))};
    if (wanted->maxSize != 0)
        pool->limit = (wanted->maxSize + wire::kPageBytes - 1) / wire::kPageBytes * wire::kPageBytes;
    pools().all.insert(pool);
    *handle = to(pool);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
    EMULATOR_ENTER();
    Pool* pool = from(handle);
    if (!pool || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    pool->destroyed = true;
    pool->threshold = 0;
    trim_pools(driver);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, std::size_t keep) {
    EMULATOR_ENTER();
    Pool* pool = from(handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    reclaim(driver, *pool);
    pool->heap.trim(driver, keep);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    EMULATOR_ENTER();
    Pool* pool = from(handle);
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
    Pool* pool = from(handle);
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
