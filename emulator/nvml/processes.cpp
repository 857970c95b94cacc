// Processes and utilisation, from the kernel time that the device counts.
#include <algorithm>
#include <ctime>

#include "session.hpp"

namespace {

using emulator::Time;
using emulator::nvml::Seen;

constexpr unsigned kNoInstance = 0xFFFFFFFF;  // no MIG

Time clock_now() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<Time>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

unsigned long long wall_microseconds() {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<unsigned long long>(now.tv_sec) * 1'000'000 +
           static_cast<unsigned long long>(now.tv_nsec) / 1000;
}

// Percent of the time since `before` that was spent in kernels.
unsigned percent(const Seen& before, Time now, Time busy) {
    if (now <= before.at) return 0;
    return static_cast<unsigned>(std::clamp<Time>(100 * (busy - before.busy) / (now - before.at), 0, 100));
}

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

nvmlReturn_t DECLDIR nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!utilization) return NVML_ERROR_INVALID_ARGUMENT;
    const auto processes = session.processes(index);
    if (!processes) return NVML_ERROR_GPU_IS_LOST;
    Seen look{clock_now(), 0};
    for (const auto& process : *processes) look.busy += process.busy;
    const auto before = session.seen_gpu.find(index);
    *utilization = {.gpu = before == session.seen_gpu.end() ? 0 : percent(before->second, look.at, look.busy),
                    .memory = 0};
    session.seen_gpu[index] = look;
    return NVML_SUCCESS;
}

// One sample a process: what happened since the last call here, and nothing at the first look at a process.
nvmlReturn_t DECLDIR nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* samples,
                                                     unsigned* count, unsigned long long) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    const auto processes = session.processes(index);
    if (!processes) return NVML_ERROR_GPU_IS_LOST;
    const unsigned room = *count;
    *count = static_cast<unsigned>(processes->size());
    if (processes->empty()) return NVML_ERROR_NOT_FOUND;
    if (!samples || room < processes->size()) return NVML_ERROR_INSUFFICIENT_SIZE;
    const Time now = clock_now();
    for (const auto& process : *processes) {
        const auto key = std::pair(index, process.pid);
        const auto before = session.seen.find(key);
        *samples++ = {.pid = static_cast<unsigned>(process.pid),
                      .timeStamp = wall_microseconds(),
                      .smUtil = before == session.seen.end() ? 0 : percent(before->second, now, process.busy)};
        session.seen[key] = {now, process.busy};
    }
    return NVML_SUCCESS;
}
