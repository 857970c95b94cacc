#include "cuda/memory/copy.hpp"

#include <algorithm>
#include <cstring>

#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/execution/stream.hpp"
#include "cuda/memory/allocation.hpp"
#include "cuda/memory/graph.hpp"
#include "cuda/memory/host.hpp"
#include "cuda/memory/virtual.hpp"

namespace emulator::cuda {
namespace {

// Pageable memory passes through pinned buffers, as in CUDA.
class Staging {
  public:
    static constexpr std::size_t kPiece = 2 << 20;
    static constexpr std::size_t kPieces = 4;

    // A piece that no copy uses any more. Waits without the lock.
    CUresult take(Driver& driver, Context& context, std::unique_lock<std::mutex>& guard, std::size_t& piece) {
        if (!memory_) {
            EMULATOR_TRY(allocate_host(driver, context, kPiece * kPieces, memory_));
        }
        piece = next_;
        next_ = (next_ + 1) % kPieces;
        const Use use = uses_[piece];
        return !use.used || is_done(driver, use.point) ? CUDA_SUCCESS : wait_for(driver, context, use.point, guard);
    }

    void used_by(std::size_t piece, const Stream& stream) { uses_[piece] = {true, stream.last()}; }
    std::byte* at(std::size_t piece) const { return static_cast<std::byte*>(memory_) + piece * kPiece; }

  private:
    struct Use {
        bool used = false;
        Point point = {};
    };
    void* memory_ = nullptr;
    std::size_t next_ = 0;
    Use uses_[kPieces];
};

Staging staging;
std::mutex staging_lock;  // one pageable copy at a time; taken before the driver's lock

// Are all these addresses device memory that the program may use?
bool is_usable(std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t start = 0;
    const Allocation* allocation = find_allocation(address, start);
    if (allocation) return bytes <= allocation->bytes - (address - start);
    return is_mapped(address, bytes) || is_graph_memory(address, bytes);
}

CUresult queue_copy(Driver& driver, Stream& stream, std::uint64_t to, std::uint64_t from, std::size_t bytes) {
    wire::Request request{.operation = wire::Operation::kCopy};
    request.copy = {.destination = to, .source = from, .bytes = bytes};
    return submit(driver, stream, request);
}

}  // namespace

CUresult copy(std::uint64_t to, std::uint64_t from, std::size_t bytes, CUstream handle, bool wait) {
    EMULATOR_ENTER_CONTEXT();
    Stream* stream = nullptr;
    EMULATOR_TRY(wait_for_room(driver, handle, guard, stream));
    if (bytes == 0) return CUDA_SUCCESS;
    for (const std::uint64_t address : {to, from})
        if (is_device(address) && !is_usable(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    // A node of a graph: where its memory is, is looked at when the graph is made.
    if (stream->capture)
        return wait ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : queue_copy(driver, *stream, to, from, bytes);
    const auto pageable = [&](std::uint64_t address) { return !is_device(address) && !is_pinned(address, bytes); };
    const bool stage_in = pageable(from);
    const bool stage_out = pageable(to);
    if (stage_in && stage_out) {
        const CUresult result = wait_for(driver, context, stream->last(), guard);
        guard.unlock();
        if (result == CUDA_SUCCESS)
            std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
        return result;
    }
    if (!stage_in && !stage_out) {
        const CUresult result = queue_copy(driver, *stream, to, from, bytes);
        return result == CUDA_SUCCESS && wait ? wait_for(driver, context, stream->last(), guard) : result;
    }
    guard.unlock();
    const std::lock_guard staged(staging_lock);
    guard.lock();
    for (std::size_t done = 0; done < bytes; done += Staging::kPiece) {
        const std::size_t part = std::min(Staging::kPiece, bytes - done);
        std::size_t piece = 0;
        EMULATOR_TRY(staging.take(driver, context, guard, piece));
        std::byte* buffer = staging.at(piece);
        if (stage_in) std::memcpy(buffer, reinterpret_cast<const std::byte*>(from) + done, part);
        EMULATOR_TRY(queue_copy(driver, *stream, stage_out ? address_of(buffer) : to + done,
                                stage_in ? address_of(buffer) : from + done, part));
        staging.used_by(piece, *stream);
        if (!stage_out && !(wait && done + part == bytes)) continue;
        EMULATOR_TRY(wait_for(driver, context, stream->last(), guard));
        if (stage_out) std::memcpy(reinterpret_cast<std::byte*>(to) + done, buffer, part);
    }
    return CUDA_SUCCESS;
}

CUresult fill(std::uint64_t to, std::uint32_t value, std::uint32_t width, std::size_t count, CUstream handle) {
    EMULATOR_ENTER_CONTEXT();
    Stream* stream = nullptr;
    EMULATOR_TRY(wait_for_room(driver, handle, guard, stream));
    if (count == 0) return CUDA_SUCCESS;
    if (to % width != 0 || count > ~0ULL / width) return CUDA_ERROR_INVALID_VALUE;
    const bool known = is_device(to) ? is_usable(to, count * width) : is_pinned(to, count * width);
    if (!known) return CUDA_ERROR_INVALID_VALUE;
    wire::Request request{.operation = wire::Operation::kFill};
    request.fill = {.destination = to, .count = count, .value = value, .width = width};
    return submit(driver, *stream, request);
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
    return copy(to, address_of(from), bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
    return copy(address_of(to), from, bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return copy(to, from, bytes, nullptr, false);
}
CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return copy(to, from, bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    return copy(to, address_of(from), bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(address_of(to), from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(to, from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(to, from, bytes, stream, false);
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, std::size_t count) {
    return fill(to, value, 1, count, nullptr);
}
CUresult CUDAAPI cuMemsetD16(CUdeviceptr to, unsigned short value, std::size_t count) {
    return fill(to, value, 2, count, nullptr);
}
CUresult CUDAAPI cuMemsetD32(CUdeviceptr to, unsigned value, std::size_t count) {
    return fill(to, value, 4, count, nullptr);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
    return fill(to, value, 1, count, stream);
}
CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream) {
    return fill(to, value, 2, count, stream);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
    return fill(to, value, 4, count, stream);
}
