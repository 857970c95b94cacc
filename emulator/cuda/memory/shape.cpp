#include "cuda/memory/shape.hpp"

#include <utility>

#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/stream.hpp"
#include "cuda/memory/array.hpp"
#include "cuda/memory/copy.hpp"

namespace emulator::cuda {
namespace {

// One side of a copy: where its first byte is, and how far rows and slices are apart.
struct Side {
    std::uint64_t address;
    std::uint64_t pitch;
    std::uint64_t slice;
};

// `rows` of 0 stands for the height of the copy.
CUresult place(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t pitch, std::size_t rows,
               const std::size_t (&origin)[3], const CUDA_MEMCPY3D& copy, Side& side) {
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return type == CU_MEMORYTYPE_ARRAY ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    if (pitch == 0) pitch = origin[0] + copy.WidthInBytes;
    if (rows == 0) rows = origin[1] + copy.Height;
    if (pitch < origin[0] + copy.WidthInBytes || (copy.Depth > 1 && rows < origin[1] + copy.Height))
        return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uintptr_t>(host) : device;
    if (base == 0) return CUDA_ERROR_INVALID_VALUE;
    side = {base + origin[0] + pitch * (origin[1] + rows * origin[2]), pitch, pitch * rows};
    return CUDA_SUCCESS;
}

CUDA_MEMCPY3D with_depth(const CUDA_MEMCPY2D& copy) {
    CUDA_MEMCPY3D whole{};
    whole.srcXInBytes = copy.srcXInBytes;
    whole.srcY = copy.srcY;
    whole.srcMemoryType = copy.srcMemoryType;
    whole.srcHost = copy.srcHost;
    whole.srcDevice = copy.srcDevice;
    whole.srcArray = copy.srcArray;
    whole.srcPitch = copy.srcPitch;
    whole.dstXInBytes = copy.dstXInBytes;
    whole.dstY = copy.dstY;
    whole.dstMemoryType = copy.dstMemoryType;
    whole.dstHost = copy.dstHost;
    whole.dstDevice = copy.dstDevice;
    whole.dstArray = copy.dstArray;
    whole.dstPitch = copy.dstPitch;
    whole.WidthInBytes = copy.WidthInBytes;
    whole.Height = copy.Height;
    whole.Depth = 1;
    return whole;
}

// Does the operations, or captures them as one task if the stream captures.
CUresult do_all(const std::vector<wire::Request>& work, CUgraphNodeType type, CUstream handle, bool wait) {
    {
        EMULATOR_ENTER_CONTEXT();
        Stream* stream = find_stream(driver, handle);
        if (!stream) return no_such_stream(handle);
        if (stream->capture) return capture_task(*stream, {.type = type, .work = work});
    }
    for (const wire::Request& request : work) {
        const auto& [to, from, bytes] = request.copy;
        const auto& [begin, count, value, width] = request.fill;
        EMULATOR_TRY(type == CU_GRAPH_NODE_TYPE_MEMCPY ? copy(to, from, bytes, handle, false)
                                                       : fill(begin, value, width, count, handle));
    }
    return wait ? cuStreamSynchronize(handle) : CUDA_SUCCESS;
}

CUresult copy_rows(CUDA_MEMCPY3D what, CUstream stream, bool wait) {
    std::vector<wire::Request> work;
    EMULATOR_TRY(resolve_arrays(what));
    EMULATOR_TRY(copies_of(what, work));
    return do_all(work, CU_GRAPH_NODE_TYPE_MEMCPY, stream, wait);
}

CUresult fill_rows(const CUDA_MEMSET_NODE_PARAMS& what, CUstream stream) {
    std::vector<wire::Request> work;
    EMULATOR_TRY(fills_of(what, work));
    return do_all(work, CU_GRAPH_NODE_TYPE_MEMSET, stream, false);
}

}  // namespace

CUresult copies_of(const CUDA_MEMCPY3D& copy, std::vector<wire::Request>& made) {
    Side from{};
    Side to{};
    if (copy.srcLOD != 0 || copy.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
    if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) return CUDA_SUCCESS;
    EMULATOR_TRY(place(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcPitch, copy.srcHeight,
                       {copy.srcXInBytes, copy.srcY, copy.srcZ}, copy, from));
    EMULATOR_TRY(place(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstPitch, copy.dstHeight,
                       {copy.dstXInBytes, copy.dstY, copy.dstZ}, copy, to));
    std::uint64_t width = copy.WidthInBytes;
    std::uint64_t rows = copy.Height;
    std::uint64_t slices = copy.Depth;
    const auto dense = [](const Side& side, std::uint64_t wide) { return side.pitch == wide; };
    if (rows == 1 || (dense(from, width) && dense(to, width))) {
        width *= std::exchange(rows, 1);
        if (slices == 1 || (from.slice == width && to.slice == width)) width *= std::exchange(slices, 1);
    }
    for (std::uint64_t slice = 0; slice < slices; ++slice)
        for (std::uint64_t row = 0; row < rows; ++row) {
            wire::Request request{.operation = wire::Operation::kCopy};
            request.copy = {.destination = to.address + slice * to.slice + row * to.pitch,
                            .source = from.address + slice * from.slice + row * from.pitch,
                            .bytes = width};
            made.push_back(request);
        }
    return CUDA_SUCCESS;
}

CUresult fills_of(const CUDA_MEMSET_NODE_PARAMS& fill, std::vector<wire::Request>& made) {
    const unsigned size = fill.elementSize;
    if ((size != 1 && size != 2 && size != 4) || fill.dst % size != 0) return CUDA_ERROR_INVALID_VALUE;
    if (fill.width == 0 || fill.height == 0) return CUDA_SUCCESS;
    if (fill.height > 1 && (fill.pitch < fill.width * size || fill.pitch % size != 0)) return CUDA_ERROR_INVALID_VALUE;
    const bool dense = fill.height == 1 || fill.pitch == fill.width * size;
    for (std::size_t row = 0; row < (dense ? 1 : fill.height); ++row) {
        wire::Request request{.operation = wire::Operation::kFill};
        request.fill = {.destination = fill.dst + row * fill.pitch,
                        .count = dense ? fill.width * fill.height : fill.width,
                        .value = fill.value,
                        .width = size};
        made.push_back(request);
    }
    return CUDA_SUCCESS;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuMemcpy3DAsync(const CUDA_MEMCPY3D* what, CUstream stream) {
    return what ? copy_rows(*what, stream, false) : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemcpy3D(const CUDA_MEMCPY3D* what) {
    return what ? copy_rows(*what, nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* what, CUstream stream) {
    return what ? copy_rows(with_depth(*what), stream, false) : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemcpy2D(const CUDA_MEMCPY2D* what) {
    return what ? copy_rows(with_depth(*what), nullptr, true) : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* what) { return cuMemcpy2D(what); }

CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
                                   std::size_t height, CUstream stream) {
    return fill_rows({to, pitch, value, 1, width, height}, stream);
}
CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t width,
                                    std::size_t height, CUstream stream) {
    return fill_rows({to, pitch, value, 2, width, height}, stream);
}
CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr to, std::size_t pitch, unsigned value, std::size_t width,
                                    std::size_t height, CUstream stream) {
    return fill_rows({to, pitch, value, 4, width, height}, stream);
}
CUresult CUDAAPI cuMemsetD2D8(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
                              std::size_t height) {
    return cuMemsetD2D8Async(to, pitch, value, width, height, nullptr);
}
CUresult CUDAAPI cuMemsetD2D16(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t width,
                               std::size_t height) {
    return cuMemsetD2D16Async(to, pitch, value, width, height, nullptr);
}
CUresult CUDAAPI cuMemsetD2D32(CUdeviceptr to, std::size_t pitch, unsigned value, std::size_t width,
                               std::size_t height) {
    return cuMemsetD2D32Async(to, pitch, value, width, height, nullptr);
}
