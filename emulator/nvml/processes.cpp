// The processes on a GPU.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "nvml/session.hpp"

namespace {

using emulator::wire::ListedProcess;

constexpr unsigned kNoInstance = 0xFFFFFFFF;  // no MIG

void describe(const ListedProcess& process, nvmlProcessInfo_v1_t& info) {
    info = {.pid = static_cast<unsigned>(process.pid), .usedGpuMemory = process.memory};
}

void describe(const ListedProcess& process, nvmlProcessInfo_v2_t& info) {
    info = {.pid = static_cast<unsigned>(process.pid),
            .usedGpuMemory = process.memory,
            .gpuInstanceId = kNoInstance,
            .computeInstanceId = kNoInstance};
}

bool any(const ListedProcess&) { return true; }
bool is_mps_client(const ListedProcess& process) { return process.mps != 0; }
bool draws(const ListedProcess&) { return false; }

// The processes of a kind. Without room for all of them, how many there are.
template <typename Info>
nvmlReturn_t list(nvmlDevice_t device, unsigned* count, Info* infos, bool (*wanted)(const ListedProcess&)) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    auto processes = session.processes(index);
    if (!processes) return NVML_ERROR_GPU_IS_LOST;
    std::erase_if(*processes, [wanted](const ListedProcess& process) { return !wanted(process); });
    const unsigned room = *count;
    *count = static_cast<unsigned>(processes->size());
    if (room < processes->size()) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (!infos && !processes->empty()) return NVML_ERROR_INVALID_ARGUMENT;
    for (const ListedProcess& process : *processes) describe(process, *infos++);
    return NVML_SUCCESS;
}

}  // namespace

// Every version of every list, under the name that programs know it by: nvml.h declares the newest alone.
#define LIST(function, symbol, Info, wanted)                                                                         \
    extern "C" [[gnu::visibility("default")]] nvmlReturn_t function(nvmlDevice_t, unsigned*, Info*) __asm__(symbol); \
    nvmlReturn_t function(nvmlDevice_t device, unsigned* count, Info* infos) {                                       \
        return list(device, count, infos, wanted);                                                                   \
    }
#define LISTS(kind, wanted)                                                                    \
    LIST(kind##_v1, "nvmlDeviceGet" #kind "RunningProcesses", nvmlProcessInfo_v1_t, wanted)    \
    LIST(kind##_v2, "nvmlDeviceGet" #kind "RunningProcesses_v2", nvmlProcessInfo_v2_t, wanted) \
    LIST(kind##_v3, "nvmlDeviceGet" #kind "RunningProcesses_v3", nvmlProcessInfo_t, wanted)
LISTS(Compute, any)
LISTS(Graphics, draws)
LISTS(MPSCompute, is_mps_client)

// The command, cut to the room that there is.
nvmlReturn_t DECLDIR nvmlSystemGetProcessName(unsigned pid, char* name, unsigned length) {
    EMULATOR_NVML_ENTER();
    if (!name || length == 0) return NVML_ERROR_INVALID_ARGUMENT;
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
    std::string command;
    if (!file || !std::getline(file, command, '\0')) return NVML_ERROR_NOT_FOUND;
    command.resize(std::min<std::size_t>(command.size(), length - 1));
    std::memcpy(name, command.c_str(), command.size() + 1);
    return NVML_SUCCESS;
}

// Limits of the driver's own are of newer ones than the one that is emulated.
nvmlReturn_t DECLDIR nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t* limits) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    return limits ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t* limits) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    return limits ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}
