#include "cuda/memory/array.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/memory/allocation.hpp"
#include "cuda/memory/copy.hpp"

namespace emulator::cuda {
namespace {

constexpr std::uint64_t kLevelAlignment = 512;

struct Array {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    std::uint64_t address;
    std::uint64_t bytes;
    std::uint64_t allocation;  // its id: an allocation goes with its context, the array's handle does not
    bool level = false;        // of a mipmapped array, which owns the memory
};

struct Mipmap {
    std::vector<std::unique_ptr<Array>> levels;
};

struct Arrays {
    std::set<Array*> arrays;
    std::set<Mipmap*> mipmaps;
};

Arrays& arrays() { return kept<Arrays>(); }

// Bytes of one channel; 0 for a format that is not modelled.
std::uint64_t channel_bytes(CUarray_format format) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8:
            return 1;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF:
            return 2;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT:
            return 4;
        default:
            return 0;
    }
}

CUresult check(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    constexpr std::size_t kMaxWidth = 131072, kMaxHeight = 65536, kMaxDepth = 16384;
    constexpr unsigned kKnown =
        CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER;
    if (channel_bytes(shape.Format) == 0 || (shape.Flags & ~kKnown) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (shape.NumChannels != 1 && shape.NumChannels != 2 && shape.NumChannels != 4) return CUDA_ERROR_INVALID_VALUE;
    const bool layered = (shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    if (shape.Width == 0 || (shape.Height == 0 && shape.Depth != 0 && !layered)) return CUDA_ERROR_INVALID_VALUE;
    if ((shape.Flags & CUDA_ARRAY3D_CUBEMAP) && (shape.Width != shape.Height || shape.Depth % 6 != 0))
        return CUDA_ERROR_INVALID_VALUE;
    return shape.Width <= kMaxWidth && shape.Height <= kMaxHeight && shape.Depth <= kMaxDepth
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

std::uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    return shape.Width * std::max<std::uint64_t>(shape.Height, 1) * std::max<std::uint64_t>(shape.Depth, 1) *
           shape.NumChannels * channel_bytes(shape.Format);
}

CUDA_ARRAY3D_DESCRIPTOR next_level(CUDA_ARRAY3D_DESCRIPTOR shape) {
    const auto half = [](std::size_t size) { return size == 0 ? 0 : std::max<std::size_t>(size / 2, 1); };
    shape.Width = half(shape.Width);
    shape.Height = half(shape.Height);
    // Layers and faces are as many in each level.
    if (!(shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP))) shape.Depth = half(shape.Depth);
    return shape;
}

// Is its memory still there? It goes with its context.
bool alive(const Array& array) {
    std::uint64_t start = 0;
    const Allocation* allocation = find_allocation(array.address, start);
    return allocation && allocation->id == array.allocation;
}

void free_memory(Driver& driver, const Array& array) {
    if (alive(array)) free_allocation(driver, array.address);
}

Array* find_array(CUarray handle) { return named(arrays().arrays, handle); }

// The address of `bytes` bytes of an array; 0 when they are not all in it.
std::uint64_t inside(CUarray handle, std::size_t offset, std::size_t bytes) {
    Driver* driver = Driver::get();
    if (!driver) return 0;
    const std::lock_guard guard(driver->lock);
    const Array* array = find_array(handle);
    if (!array || !alive(*array)) return 0;
    return offset <= array->bytes && bytes <= array->bytes - offset ? array->address + offset : 0;
}

}  // namespace

CUresult resolve_arrays(CUDA_MEMCPY3D& copy) {
    EMULATOR_ENTER();
    const auto resolve = [&](CUmemorytype& type, CUarray handle, CUdeviceptr& address, std::size_t& pitch,
                             std::size_t& rows, std::size_t x, std::size_t y, std::size_t z) {
        if (type != CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
        const Array* array = find_array(handle);
        if (!array || !alive(*array)) return CUDA_ERROR_INVALID_HANDLE;
        const auto fits = [](std::size_t from, std::size_t count, std::size_t size) {
            return from <= size && count <= size - from;
        };
        type = CU_MEMORYTYPE_DEVICE;
        address = array->address;
        pitch = array->shape.Width * array->shape.NumChannels * channel_bytes(array->shape.Format);
        rows = std::max<std::size_t>(array->shape.Height, 1);
        const std::size_t slices = std::max<std::size_t>(array->shape.Depth, 1);
        return fits(x, copy.WidthInBytes, pitch) && fits(y, copy.Height, rows) && fits(z, copy.Depth, slices)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_INVALID_VALUE;
    };
    EMULATOR_TRY(resolve(copy.srcMemoryType, copy.srcArray, copy.srcDevice, copy.srcPitch, copy.srcHeight,
                         copy.srcXInBytes, copy.srcY, copy.srcZ));
    return resolve(copy.dstMemoryType, copy.dstArray, copy.dstDevice, copy.dstPitch, copy.dstHeight, copy.dstXInBytes,
                   copy.dstY, copy.dstZ);
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuArray3DCreate(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
    EMULATOR_ENTER_CONTEXT();
    if (!handle || !shape) return CUDA_ERROR_INVALID_VALUE;
    EMULATOR_TRY(check(*shape));
    EMULATOR_TRY(allow_unsafe_call());
    std::uint64_t address = 0;
    const std::uint64_t bytes = bytes_of(*shape);
    EMULATOR_TRY(allocate(driver, context, bytes, address));
    auto* array = new Array{*shape, address, bytes, allocations().at(address).id};
    arrays().arrays.insert(array);
    *handle = reinterpret_cast<CUarray>(array);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayCreate(CUarray* handle, const CUDA_ARRAY_DESCRIPTOR* shape) {
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR same{.Width = shape->Width,
                                       .Height = shape->Height,
                                       .Depth = 0,
                                       .Format = shape->Format,
                                       .NumChannels = shape->NumChannels,
                                       .Flags = 0};
    return cuArray3DCreate(handle, &same);
}

CUresult CUDAAPI cuArrayDestroy(CUarray handle) {
    EMULATOR_ENTER_CONTEXT();
    Array* array = find_array(handle);
    if (!array || array->level) return CUDA_ERROR_INVALID_HANDLE;
    wait_for_all(driver, context, guard);
    if (find_array(handle) != array) return CUDA_ERROR_INVALID_HANDLE;
    free_memory(driver, *array);
    arrays().arrays.erase(array);
    delete array;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR* shape, CUarray handle) {
    EMULATOR_ENTER();
    const Array* array = find_array(handle);
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    if (!shape) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR& whole = array->shape;
    *shape = {.Width = whole.Width, .Height = whole.Height, .Format = whole.Format, .NumChannels = whole.NumChannels};
    return CUDA_SUCCESS;
}

// All levels are in one allocation, the largest first.
CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray* handle, const CUDA_ARRAY3D_DESCRIPTOR* shape,
                                        unsigned levels) {
    EMULATOR_ENTER_CONTEXT();
    if (!handle || !shape || levels == 0) return CUDA_ERROR_INVALID_VALUE;
    EMULATOR_TRY(check(*shape));
    EMULATOR_TRY(allow_unsafe_call());
    auto mipmap = std::make_unique<Mipmap>();
    CUDA_ARRAY3D_DESCRIPTOR level = *shape;
    std::uint64_t bytes = 0;
    for (unsigned i = 0; i < levels; ++i) {
        const auto smaller = i == 0 ? level : next_level(level);
        // As many as there are until all is 1.
        if (i > 0 && smaller.Width == level.Width && smaller.Height == level.Height && smaller.Depth == level.Depth)
            break;
        level = smaller;
        mipmap->levels.push_back(std::make_unique<Array>(Array{level, bytes, bytes_of(level), 0, true}));
        bytes += (bytes_of(level) + kLevelAlignment - 1) / kLevelAlignment * kLevelAlignment;
    }
    std::uint64_t address = 0;
    EMULATOR_TRY(allocate(driver, context, bytes, address));
    for (const auto& array : mipmap->levels) {
        array->address += address;
        array->allocation = allocations().at(address).id;
        arrays().arrays.insert(array.get());
    }
    *handle = reinterpret_cast<CUmipmappedArray>(mipmap.get());
    arrays().mipmaps.insert(mipmap.release());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayGetLevel(CUarray* level, CUmipmappedArray handle, unsigned index) {
    EMULATOR_ENTER();
    Mipmap* mipmap = named(arrays().mipmaps, handle);
    if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
    if (!level || index >= mipmap->levels.size()) return CUDA_ERROR_INVALID_VALUE;
    *level = reinterpret_cast<CUarray>(mipmap->levels[index].get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray handle) {
    EMULATOR_ENTER_CONTEXT();
    Mipmap* mipmap = named(arrays().mipmaps, handle);
    if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
    wait_for_all(driver, context, guard);
    if (arrays().mipmaps.erase(mipmap) == 0) return CUDA_ERROR_INVALID_HANDLE;
    free_memory(driver, *mipmap->levels.front());
    for (const auto& array : mipmap->levels) arrays().arrays.erase(array.get());
    delete mipmap;
    return CUDA_SUCCESS;
}

namespace {

// `bytes` of an array to or from an address.
CUresult copy_in(CUarray to, std::size_t offset, std::uint64_t from, std::size_t bytes, CUstream stream, bool wait) {
    const std::uint64_t address = inside(to, offset, bytes);
    return address ? copy(address, from, bytes, stream, wait) : CUDA_ERROR_INVALID_VALUE;
}
CUresult copy_out(std::uint64_t to, CUarray from, std::size_t offset, std::size_t bytes, CUstream stream, bool wait) {
    const std::uint64_t address = inside(from, offset, bytes);
    return address ? copy(to, address, bytes, stream, wait) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult CUDAAPI cuMemcpyHtoA(CUarray to, std::size_t offset, const void* from, std::size_t bytes) {
    return copy_in(to, offset, address_of(from), bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyAtoH(void* to, CUarray from, std::size_t offset, std::size_t bytes) {
    return copy_out(address_of(to), from, offset, bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoA(CUarray to, std::size_t offset, CUdeviceptr from, std::size_t bytes) {
    return copy_in(to, offset, from, bytes, nullptr, false);
}
CUresult CUDAAPI cuMemcpyAtoD(CUdeviceptr to, CUarray from, std::size_t offset, std::size_t bytes) {
    return copy_out(to, from, offset, bytes, nullptr, false);
}
CUresult CUDAAPI cuMemcpyHtoAAsync(CUarray to, std::size_t offset, const void* from, std::size_t bytes,
                                   CUstream stream) {
    return copy_in(to, offset, address_of(from), bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyAtoHAsync(void* to, CUarray from, std::size_t offset, std::size_t bytes, CUstream stream) {
    return copy_out(address_of(to), from, offset, bytes, stream, false);
}
