// The processes on a GPU.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "session.hpp"

// The first versions, which nvml.h no longer declares.
#pragma GCC visibility push(default)
extern "C" {
nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v1(
    nvmlDevice_t device, unsigned* count, nvmlProcessInfo_v1_t* infos) __asm__("nvmlDeviceGetComputeRunningProcesses");
nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                             nvmlProcessInfo_v2_t* infos);
nvmlReturn_t DECLDIR nvmlDeviceGetGraphicsRunningProcesses_v1(
    nvmlDevice_t device, unsigned* count, nvmlProcessInfo_v1_t* infos) __asm__("nvmlDeviceGetGraphicsRunningProcesses");
nvmlReturn_t DECLDIR nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                              nvmlProcessInfo_v2_t* infos);
nvmlReturn_t DECLDIR nvmlDeviceGetMPSComputeRunningProcesses_v1(
    nvmlDevice_t device, unsigned* count,
    nvmlProcessInfo_v1_t* infos) __asm__("nvmlDeviceGetMPSComputeRunningProcesses");
nvmlReturn_t DECLDIR nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                                nvmlProcessInfo_v2_t* infos);
}
#pragma GCC visibility pop

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

nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v1(nvmlDevice_t device, unsigned* count,
                                                             nvmlProcessInfo_v1_t* infos) {
    return list(device, count, infos, any);
}
nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                             nvmlProcessInfo_v2_t* infos) {
    return list(device, count, infos, any);
}
nvmlReturn_t DECLDIR nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                             nvmlProcessInfo_t* infos) {
    return list(device, count, infos, any);
}

nvmlReturn_t DECLDIR nvmlDeviceGetGraphicsRunningProcesses_v1(nvmlDevice_t device, unsigned* count,
                                                              nvmlProcessInfo_v1_t* infos) {
    return list(device, count, infos, draws);
}
nvmlReturn_t DECLDIR nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                              nvmlProcessInfo_v2_t* infos) {
    return list(device, count, infos, draws);
}
nvmlReturn_t DECLDIR nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                              nvmlProcessInfo_t* infos) {
    return list(device, count, infos, draws);
}

nvmlReturn_t DECLDIR nvmlDeviceGetMPSComputeRunningProcesses_v1(nvmlDevice_t device, unsigned* count,
                                                                nvmlProcessInfo_v1_t* infos) {
    return list(device, count, infos, is_mps_client);
}
nvmlReturn_t DECLDIR nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                                nvmlProcessInfo_v2_t* infos) {
    return list(device, count, infos, is_mps_client);
}
nvmlReturn_t DECLDIR nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                                nvmlProcessInfo_t* infos) {
    return list(device, count, infos, is_mps_client);
}

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
