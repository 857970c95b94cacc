// Device memory that is allocated and freed in the order of streams.
#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/stream.hpp"
#include "cuda/memory/allocation.hpp"
#include "cuda/memory/graph.hpp"
#include "cuda/memory/pool.hpp"

namespace emulator::cuda {
namespace {

CUresult allocate_in_order(Driver& driver, Context& context, CUdeviceptr* address, std::size_t bytes, Pool& pool,
                           CUstream handle) {
    Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    if (!address || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        Task task{.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
        CUresult result = reserve_graph_memory(driver, stream->context->gpu, bytes, task.memory);
        if (result != CUDA_SUCCESS) return result;
        const std::uint64_t reserved = task.memory->address;
        result = capture_task(*stream, std::move(task));
        if (result == CUDA_SUCCESS) *address = reserved;
        return result;
    }
    EMULATOR_TRY(allow_unsafe_call());
    EMULATOR_TRY(context_error(driver, context));
    std::uint64_t made = 0;
    EMULATOR_TRY(allocate_from(driver, pool, *stream, bytes, made));
    allocations().emplace(made, Allocation{bytes, &context, Allocation::Kind::kPool, {}, &pool});
    *address = made;
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
    EMULATOR_ENTER_CONTEXT();
    return allocate_in_order(driver, context, address, bytes, default_pool(driver, context.gpu), stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool handle,
                                         CUstream stream) {
    EMULATOR_ENTER_CONTEXT();
    Pool* pool = find_pool(handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    return allocate_in_order(driver, context, address, bytes, *pool, stream);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    EMULATOR_ENTER_CONTEXT();
    Stream* stream = find_stream(driver, handle);
    if (!stream) return no_such_stream(handle);
    if (address == 0) return CUDA_SUCCESS;
    if (stream->capture) {
        Task task{.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory = find_graph_memory(address)};
        return task.memory ? capture_task(*stream, std::move(task)) : CUDA_ERROR_INVALID_VALUE;
    }
    if (free_graph_memory(address)) return CUDA_SUCCESS;
    const auto found = allocations().find(address);
    if (found == allocations().end() || found->second.kind != Allocation::Kind::kPool) return CUDA_ERROR_INVALID_VALUE;
    EMULATOR_TRY(begin_work(driver, *stream));  // a free comes behind what any work there would come behind
    free_in_order(*found->second.pool, address, stream->last());
    allocations().erase(found);
    return CUDA_SUCCESS;
}
