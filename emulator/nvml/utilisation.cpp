// Utilisation, from the samples that the device keeps: how busy kernels were in each of its last sampling periods.
#include <algorithm>

#include "nvml/session.hpp"
#include "shared/clock.hpp"

namespace {

using emulator::wire::BusySample;
using Microseconds = unsigned long long;

// Since the epoch.
Microseconds when(const BusySample& sample) {
    return static_cast<Microseconds>((sample.end + emulator::wall_offset()) / 1000);
}

// The wall's clock is asked anew at each look, so that a sample already seen may look a little younger.
bool is_newer(const BusySample& sample, Microseconds last_seen) {
    constexpr Microseconds kUncertainty = 1000;
    return sample.end != 0 && when(sample) > last_seen + kUncertainty;
}

}  // namespace

nvmlReturn_t DECLDIR nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!utilization) return NVML_ERROR_INVALID_ARGUMENT;
    const auto samples = session.samples(index);
    if (!samples) return NVML_ERROR_GPU_IS_LOST;
    *utilization = {.gpu = samples->empty() ? 0 : samples->back().percent, .memory = 0};
    return NVML_SUCCESS;
}

// The GPU's samples since `last_seen`, the newest if there is no room for all. Without `samples`: how many there are.
nvmlReturn_t DECLDIR nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen,
                                          nvmlValueType_t* value_type, unsigned* count, nvmlSample_t* samples) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!value_type || !count || (samples && *count == 0)) return NVML_ERROR_INVALID_ARGUMENT;
    if (type != NVML_GPU_UTILIZATION_SAMPLES) return NVML_ERROR_NOT_SUPPORTED;
    auto newer = session.samples(index);
    if (!newer) return NVML_ERROR_GPU_IS_LOST;
    std::erase_if(*newer, [last_seen](const BusySample& sample) { return !is_newer(sample, last_seen); });
    if (newer->empty()) return NVML_ERROR_NOT_FOUND;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    const auto available = static_cast<unsigned>(newer->size());
    *count = samples ? std::min(*count, available) : available;
    if (!samples) return NVML_SUCCESS;
    std::transform(newer->end() - *count, newer->end(), samples, [](const BusySample& sample) {
        return nvmlSample_t{.timeStamp = when(sample), .sampleValue = {.uiVal = sample.percent}};
    });
    return NVML_SUCCESS;
}

// The newest sample of each process that was busy since `last_seen`.
nvmlReturn_t DECLDIR nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* samples,
                                                     unsigned* count, unsigned long long last_seen) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    auto processes = session.processes(index);
    if (!processes) return NVML_ERROR_GPU_IS_LOST;
    const unsigned room = samples ? *count : 0;
    *count = static_cast<unsigned>(processes->size());  // there may be as many in the next look
    std::erase_if(*processes, [last_seen](const auto& process) { return !is_newer(process.sample, last_seen); });
    if (processes->empty()) return NVML_ERROR_NOT_FOUND;
    if (room < processes->size()) return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = static_cast<unsigned>(processes->size());
    for (const auto& process : *processes)
        *samples++ = {.pid = static_cast<unsigned>(process.pid),
                      .timeStamp = when(process.sample),
                      .smUtil = process.sample.percent};
    return NVML_SUCCESS;
}
