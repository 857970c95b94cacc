#include "cuda/driver/rm_client.hpp"

#include <sys/ioctl.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/driver/door.hpp"
#include "shared/protocol.hpp"

namespace emulator::cuda {
namespace {

namespace status = rm::status;
namespace rm_class = rm::class_number;

// Handles, as CUDA has them on driver 580: a part for each GPU first. Those of device memory are kept apart, so that a
// program that allocates and frees leaves no gaps among those of its contexts; and far away, as contexts take others
// each time that they are made.
constexpr std::uint32_t kMaxBase = 0xFFF00000;
constexpr std::uint32_t kMemory = 0x4000000;

// Device memory comes in such pages, and whoever stands at the door is to know how much will come of a request.
constexpr std::uint32_t kHugePages = 3u << 23;  // NVOS32_ATTR_PAGE_SIZE

template <typename T>
int rm_ioctl(int descriptor, std::uint32_t number, T& argument) {
    return ::runlist_emulated_ioctl(descriptor, _IOC(_IOC_READ | _IOC_WRITE, rm::kMagic, number, sizeof argument),
                                    &argument);
}

std::uint32_t chosen_base() {
    const char* named = std::getenv(names::kEmulatedHandleBase);
    const auto base = static_cast<std::uint32_t>(named ? std::strtoul(named, nullptr, 0) : 0);
    return base != 0 && base <= kMaxBase ? base : rm::kObjectBase;
}

}  // namespace

CUresult RmClient::open(int descriptor) {
    descriptor_ = descriptor;
    base_ = chosen_base();
    next_ = base_ + std::min(kMemory, (UINT32_MAX - base_) / 2);
    CUresult error = CUDA_SUCCESS;
    if (allocate(0, handle_, rm_class::kRootClient, nullptr, 0, error) != status::kOk) return CUDA_ERROR_NO_DEVICE;
    if (const CUresult result = count_gpus(); result != CUDA_SUCCESS) return result;
    for (std::uint32_t gpu = 0; gpu < gpus_; ++gpu) {
        std::uint32_t device = base_ + gpu * rm::kGpuSpan + rm::kDeviceAt;
        std::uint32_t subdevice = base_ + gpu * rm::kGpuSpan + rm::kSubdeviceAt;
        rm::DeviceParameters of_device{.device_id = gpu, .client_share = handle_};
        rm::SubdeviceParameters of_subdevice{};
        if (allocate(handle_, device, rm_class::kDevice, &of_device, sizeof of_device, error) != status::kOk ||
            allocate(device, subdevice, rm_class::kSubdevice, &of_subdevice, sizeof of_subdevice, error) != status::kOk)
            return CUDA_ERROR_NO_DEVICE;
    }
    return CUDA_SUCCESS;
}

CUresult RmClient::count_gpus() {
    rm::GetAttachedIds attached{};
    rm::Nvos54Control argument{.client = handle_,
                               .object = handle_,
                               .command = rm::control::kGetAttachedIds.number,
                               .params = &attached,
                               .params_size = sizeof attached,
                               .status = status::kNoMemory};
    if (rm_ioctl(descriptor_, rm::number::kRmControl, argument) != 0 || argument.status != status::kOk)
        return CUDA_ERROR_NO_DEVICE;
    gpus_ = static_cast<std::uint32_t>(std::ranges::find(attached.ids, rm::kNoGpuId) - attached.ids);
    return CUDA_SUCCESS;
}

std::uint32_t RmClient::allocate(std::uint32_t parent, std::uint32_t& handle, std::uint32_t cls, void* parameters,
                                 std::uint32_t parameter_bytes, CUresult& error) const {
    rm::Nvos64Alloc argument{.root = handle_,
                             .parent = parent,
                             .new_ = handle,
                             .class_ = cls,
                             .params = parameters,
                             .params_size = parameter_bytes,
                             .status = status::kNoMemory};
    error = CUDA_SUCCESS;
    if (rm_ioctl(descriptor_, rm::number::kRmAlloc, argument) != 0) {
        error = CUDA_ERROR_DEVICE_UNAVAILABLE;
        return status::kNoMemory;
    }
    handle = argument.new_;
    return argument.status;
}

void RmClient::repeat_made() {
    constexpr std::uint32_t kGap = 0x100;  // that is longer than any in a context's part
    if (!has_twin()) return;
    const auto ask = [&](std::uint32_t handle, std::uint32_t index) {
        rm::GetHandleInfo info{.object = handle, .index = index};
        rm::Nvos54Control argument{.client = handle_,
                                   .object = handle_,
                                   .command = rm::control::kGetHandleInfo.number,
                                   .params = &info,
                                   .params_size = sizeof info,
                                   .status = status::kNoMemory};
        const bool done =
            rm_ioctl(descriptor_, rm::number::kRmControl, argument) == 0 && argument.status == status::kOk;
        return done ? static_cast<std::uint32_t>(info.result) : 0;
    };
    std::uint32_t last = std::max(repeated_, base_ + rm::kGpuSpan * gpus_);
    for (std::uint32_t handle = last + 1; handle - last < kGap; ++handle) {
        const std::uint32_t cls = ask(handle, rm::kHandleInfoClass);
        if (cls == 0) continue;
        last = handle;
        rm::Nvos64Alloc made{.root = handle_,
                             .parent = ask(handle, rm::kHandleInfoParent),
                             .new_ = handle,
                             .class_ = cls,
                             .status = status::kOk};
        repeat_on_twin(_IOC(_IOC_READ | _IOC_WRITE, rm::kMagic, rm::number::kRmAlloc, sizeof made), &made);
    }
    repeated_ = last;
}

CUresult RmClient::take(std::uint32_t gpu, std::uint64_t bytes, DeviceMemory& memory) {
    rm::MemoryParameters parameters{.owner = handle_, .attr = kHugePages, .size = bytes};
    std::uint32_t handle = choose_handle();
    CUresult error = CUDA_SUCCESS;
    const std::uint32_t device = base_ + gpu * rm::kGpuSpan + rm::kDeviceAt;
    const std::uint32_t code = allocate(device, handle, rm_class::kDeviceMemory, &parameters, sizeof parameters, error);
    if (code == status::kOk) {
        memory = {handle, gpu, parameters.size};
        return CUDA_SUCCESS;
    }
    free_.insert(handle);
    if (error != CUDA_SUCCESS) return error;
    return code == status::kNoMemory || code == status::kInsufficientResources ? CUDA_ERROR_OUT_OF_MEMORY
                                                                               : CUDA_ERROR_UNKNOWN;
}

void RmClient::give(const DeviceMemory& memory) {
    rm::Nvos00Free argument{handle_, base_ + memory.gpu * rm::kGpuSpan + rm::kDeviceAt, memory.handle, status::kOk};
    if (rm_ioctl(descriptor_, rm::number::kRmFree, argument) == 0) free_.insert(memory.handle);
}

std::uint32_t RmClient::choose_handle() {
    if (free_.empty()) return next_++;
    return free_.extract(free_.begin()).value();
}

}  // namespace emulator::cuda
