// Devices: how many, and what they are like.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cuda/driver/driver.hpp"
#include "model/timing.hpp"
#include "shared/versions.hpp"

using namespace emulator;
using namespace emulator::cuda;

namespace {

constexpr char kName[] = "Emulated H200";

struct Attribute {
    CUdevice_attribute attribute;
    int value;
};

constexpr Attribute kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, timing::kWarp},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, timing::kWarpsPerProcessor * timing::kWarp},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, timing::kBlocksPerProcessor},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kCapabilityMajor},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, kCapabilityMinor},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
};

// A client of MPS may be given a part of the SMs, and sees that: rounded up to whole pairs of them.
int processors() {
    const char* percent = std::getenv(names::kMpsPercentage);
    if (!std::getenv(names::kMpsPipes) || !percent) return timing::kProcessors;
    const double part = std::clamp(std::strtod(percent, nullptr), 0.0, 100.0) / 100 * timing::kProcessors;
    const int pairs = static_cast<int>(std::ceil(part / 2));
    return pairs > 0 ? std::min<int>(2 * pairs, timing::kProcessors) : timing::kProcessors;
}

}  // namespace

CUresult CUDAAPI cuDeviceGetCount(int* count) {
    EMULATOR_ENTER();
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(driver.connection.gpus());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
    EMULATOR_ENTER();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice device) {
    EMULATOR_ENTER();
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    const std::size_t copied = std::min(sizeof kName - 1, static_cast<std::size_t>(length) - 1);
    std::memcpy(name, kName, copied);
    name[copied] = '\0';
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    EMULATOR_ENTER();
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    wire::Reply reply{};
    const CUresult result = driver.connection.describe(static_cast<std::uint32_t>(device), reply);
    std::memcpy(uuid->bytes, reply.uuid, sizeof uuid->bytes);
    return result;
}

CUresult CUDAAPI cuDeviceGetUuid_v1(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult CUDAAPI cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
    EMULATOR_ENTER();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    wire::Reply reply{};
    const CUresult result = driver.connection.describe(static_cast<std::uint32_t>(device), reply);
    *bytes = reply.total;
    return result;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    EMULATOR_ENTER();
    if (!value || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
        *value = device + 1;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) {
        *value = processors();
        return CUDA_SUCCESS;
    }
    // What is not listed, the emulated GPU does not have.
    const auto* it = std::ranges::find(kAttributes, attribute, &Attribute::attribute);
    *value = it == std::end(kAttributes) ? 0 : it->value;
    return CUDA_SUCCESS;
}
