// What an address is.
#include "cuda/memory/allocation.hpp"
#include "cuda/memory/host.hpp"
#include "cuda/memory/virtual.hpp"

using namespace emulator;
using namespace emulator::cuda;

namespace {

// An address that the device reaches.
struct Pointer {
    std::uint64_t address;
    std::uint64_t start;  // of its allocation
    std::uint64_t bytes;
    Context* context;
    CUmemorytype type;
    bool managed;
    std::uint64_t id;
    Pool* pool;
};

bool find(CUdeviceptr address, Pointer& found) {
    std::uint64_t start = 0;
    if (const Allocation* device = find_allocation(address, start)) {
        found = {address, start, device->bytes, device->context, CU_MEMORYTYPE_DEVICE, false, device->id, device->pool};
        return true;
    }
    if (const HostAllocation* host = find_host(address, start)) {
        const CUmemorytype type = host->managed ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        found = {address, start, host->bytes, host->context, type, host->managed, host->id, nullptr};
        return true;
    }
    if (!is_mapped(address, 1)) return false;
    found = {address, address, 1, nullptr, CU_MEMORYTYPE_DEVICE, false, 0, nullptr};
    return true;
}

template <typename T>
CUresult answer(void* data, T value) {
    *static_cast<T*>(data) = value;
    return CUDA_SUCCESS;
}

CUresult get(const Pointer& pointer, CUpointer_attribute attribute, void* data) {
    const bool device_only = pointer.type == CU_MEMORYTYPE_DEVICE && !pointer.managed;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return answer(data, reinterpret_cast<CUcontext>(pointer.context));
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return answer(data, static_cast<unsigned>(pointer.type));
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            return answer(data, CUdeviceptr{pointer.address});
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (device_only) return CUDA_ERROR_INVALID_VALUE;
            return answer(data, reinterpret_cast<void*>(pointer.address));
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return answer(data,
                          objects().contexts.contains(pointer.context) ? static_cast<int>(pointer.context->gpu) : 0);
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return answer(data, static_cast<unsigned>(pointer.managed));
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return answer(data, static_cast<unsigned long long>(pointer.id));
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return answer(data, CUdeviceptr{pointer.start});
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return answer(data, std::size_t{pointer.bytes});
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return answer(data, 1);
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            return answer(data, reinterpret_cast<CUmemoryPool>(pointer.pool));
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // namespace

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    EMULATOR_ENTER();
    Pointer pointer{};
    if (!data || !find(address, pointer)) return CUDA_ERROR_INVALID_VALUE;
    return get(pointer, attribute, data);
}
