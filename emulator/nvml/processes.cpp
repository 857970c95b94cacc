// The processes on a GPU.
#include "session.hpp"

namespace {

constexpr unsigned kNoInstance = 0xFFFFFFFF;  // no MIG

}  // namespace

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                             nvmlProcessInfo_t* infos) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    const auto processes = session.processes(index);
    if (!processes) return NVML_ERROR_GPU_IS_LOST;
    const unsigned room = *count;
    *count = static_cast<unsigned>(processes->size());
    if (room < processes->size()) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (!infos && !processes->empty()) return NVML_ERROR_INVALID_ARGUMENT;
    for (const auto& process : *processes)
        *infos++ = {.pid = static_cast<unsigned>(process.pid),
                    .usedGpuMemory = process.memory,
                    .gpuInstanceId = kNoInstance,
                    .computeInstanceId = kNoInstance};
    return NVML_SUCCESS;
}
