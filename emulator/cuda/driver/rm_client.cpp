#include "cuda/driver/rm_client.hpp"

#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "cuda/driver/door.hpp"
#include "shared/protocol.hpp"

namespace emulator::cuda {
namespace {

constexpr std::uint32_t kOk = 0x00;
constexpr std::uint32_t kInsufficientResources = 0x1A;
constexpr std::uint32_t kNoMemory = 0x51;

constexpr std::uint32_t kRootClass = 0x41;
constexpr std::uint32_t kDeviceClass = 0x80;
constexpr std::uint32_t kSubdeviceClass = 0x2080;
constexpr std::uint32_t kMemoryClass = 0x40;

// Handles, as CUDA has them on driver 580: a part for each GPU first. Those of device memory are kept apart, so that a
// program that allocates and frees leaves no gaps among those of its contexts.
constexpr std::uint32_t kUsualBase = 0x5C000000;
constexpr std::uint32_t kMaxBase = 0xFFF00000;
constexpr std::uint32_t kDevice = 0x02;
constexpr std::uint32_t kSubdevice = 0x03;
constexpr std::uint32_t kGpuSpan = 0x14;
constexpr std::uint32_t kMemory = 0x40000;

struct FreeArgument {  // NVOS00
    std::uint32_t root;
    std::uint32_t parent;
    std::uint32_t object;
    std::uint32_t status;
};
struct AllocateArgument {  // NVOS64
    std::uint32_t root;
    std::uint32_t parent;
    std::uint32_t handle;
    std::uint32_t cls;
    std::uint64_t parameters;
    std::uint64_t rights;
    std::uint32_t parameter_bytes;
    std::uint32_t flags;
    std::uint32_t status;
    std::uint32_t padding;
};
struct ControlArgument {  // NVOS54
    std::uint32_t client;
    std::uint32_t object;
    std::uint32_t command;
    std::uint32_t flags;
    std::uint64_t parameters;
    std::uint32_t parameter_bytes;
    std::uint32_t status;
};
struct MemoryParameters {  // NV_MEMORY_ALLOCATION_PARAMS, as far as it is used
    std::uint32_t owner;
    std::uint32_t type;
    std::uint32_t flags;
    std::uint32_t unused1[3];
    std::uint32_t attr;
    std::uint32_t attr2;
    std::uint32_t unused2[8];
    std::uint64_t bytes;
    std::uint64_t alignment;
    std::uint64_t offset;
    std::uint64_t unused3[5];
};
static_assert(sizeof(AllocateArgument) == 48 && sizeof(ControlArgument) == 32 && sizeof(FreeArgument) == 16);
static_assert(offsetof(MemoryParameters, bytes) == 64 && sizeof(MemoryParameters) == 128);

template <typename T>
int rm_ioctl(int descriptor, std::uint32_t number, T& argument) {
    return ::runlist_emulated_ioctl(descriptor, _IOC(_IOC_READ | _IOC_WRITE, 'F', number, sizeof argument), &argument);
}

std::uint64_t address_of(void* parameters) { return reinterpret_cast<std::uintptr_t>(parameters); }

std::uint32_t chosen_base() {
    const char* named = std::getenv(wire::kHandleBaseVariable);
    const auto base = static_cast<std::uint32_t>(named ? std::strtoul(named, nullptr, 0) : 0);
    return base != 0 && base <= kMaxBase ? base : kUsualBase;
}

}  // namespace

CUresult RmClient::open(int descriptor) {
    descriptor_ = descriptor;
    base_ = chosen_base();
    next_ = base_ + kMemory;
    CUresult error = CUDA_SUCCESS;
    if (allocate(0, handle_, kRootClass, nullptr, 0, error) != kOk) return CUDA_ERROR_NO_DEVICE;
    if (const CUresult result = count_gpus(); result != CUDA_SUCCESS) return result;
    for (std::uint32_t gpu = 0; gpu < gpus_; ++gpu) {
        std::uint32_t device = base_ + gpu * kGpuSpan + kDevice;
        std::uint32_t subdevice = base_ + gpu * kGpuSpan + kSubdevice;
        std::array<std::uint32_t, 14> device_parameters{gpu, handle_};
        std::uint32_t subdevice_parameters = 0;
        if (allocate(handle_, device, kDeviceClass, device_parameters.data(), sizeof device_parameters, error) != kOk ||
            allocate(device, subdevice, kSubdeviceClass, &subdevice_parameters, sizeof subdevice_parameters, error) !=
                kOk)
            return CUDA_ERROR_NO_DEVICE;
    }
    return CUDA_SUCCESS;
}

CUresult RmClient::count_gpus() {
    constexpr std::uint32_t kGetAttachedIds = 0x0201;
    constexpr std::uint32_t kNoGpu = 0xFFFFFFFF;
    std::array<std::uint32_t, 32> ids{};
    ControlArgument argument{.client = handle_,
                             .object = handle_,
                             .command = kGetAttachedIds,
                             .parameters = address_of(ids.data()),
                             .parameter_bytes = sizeof ids,
                             .status = kNoMemory};
    if (rm_ioctl(descriptor_, wire::kRmControl, argument) != 0 || argument.status != kOk) return CUDA_ERROR_NO_DEVICE;
    gpus_ = static_cast<std::uint32_t>(std::ranges::find(ids, kNoGpu) - ids.begin());
    return CUDA_SUCCESS;
}

std::uint32_t RmClient::allocate(std::uint32_t parent, std::uint32_t& handle, std::uint32_t cls, void* parameters,
                                 std::uint32_t parameter_bytes, CUresult& error) const {
    AllocateArgument argument{.root = handle_,
                              .parent = parent,
                              .handle = handle,
                              .cls = cls,
                              .parameters = address_of(parameters),
                              .parameter_bytes = parameter_bytes,
                              .status = kNoMemory};
    error = CUDA_SUCCESS;
    if (rm_ioctl(descriptor_, wire::kRmAlloc, argument) != 0) {
        error = CUDA_ERROR_DEVICE_UNAVAILABLE;
        return kNoMemory;
    }
    handle = argument.handle;
    return argument.status;
}

CUresult RmClient::take(std::uint32_t gpu, std::uint64_t bytes, DeviceMemory& memory) {
    MemoryParameters parameters{.owner = handle_, .bytes = bytes};
    std::uint32_t handle = choose_handle();
    CUresult error = CUDA_SUCCESS;
    const std::uint32_t device = base_ + gpu * kGpuSpan + kDevice;
    const std::uint32_t status = allocate(device, handle, kMemoryClass, &parameters, sizeof parameters, error);
    if (status == kOk) {
        memory = {handle, gpu, parameters.bytes};
        return CUDA_SUCCESS;
    }
    free_.insert(handle);
    if (error != CUDA_SUCCESS) return error;
    return status == kNoMemory || status == kInsufficientResources ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
}

void RmClient::give(const DeviceMemory& memory) {
    FreeArgument argument{handle_, base_ + memory.gpu * kGpuSpan + kDevice, memory.handle, kOk};
    if (rm_ioctl(descriptor_, wire::kRmFree, argument) == 0) free_.insert(memory.handle);
}

std::uint32_t RmClient::choose_handle() {
    if (free_.empty()) return next_++;
    return free_.extract(free_.begin()).value();
}

}  // namespace emulator::cuda
