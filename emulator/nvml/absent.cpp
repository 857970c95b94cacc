// What tools ask of every card and the emulated one has not. They take "not supported" for a card without it, as many
// are, and a missing function for a driver that is too old.
#include "nvml/session.hpp"
#include "shared/versions.hpp"

#define EMULATOR_NVML_ABSENT(name, ...)                           \
    nvmlReturn_t DECLDIR name(nvmlDevice_t device, __VA_ARGS__) { \
        EMULATOR_NVML_ENTER_DEVICE(device);                       \
        return NVML_ERROR_NOT_SUPPORTED;                          \
    }

EMULATOR_NVML_ABSENT(nvmlDeviceGetClockInfo, nvmlClockType_t, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetConfComputeMemSizeInfo, nvmlConfComputeMemSizeInfo_t*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetDecoderUtilization, unsigned*, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetDisplayActive, nvmlEnableState_t*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetDisplayMode, nvmlEnableState_t*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetDriverModel_v2, nvmlDriverModel_t*, nvmlDriverModel_t*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetEncoderUtilization, unsigned*, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetEnforcedPowerLimit, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetFanSpeed, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetMaxClockInfo, nvmlClockType_t, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetMigMode, unsigned*, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetPcieThroughput, nvmlPcieUtilCounter_t, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetPciInfo_v3, nvmlPciInfo_t*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetPerformanceState, nvmlPstates_t*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetPersistenceMode, nvmlEnableState_t*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetPowerManagementLimit, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetPowerUsage, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t, unsigned*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetTemperatureV, nvmlTemperature_t*)
EMULATOR_NVML_ABSENT(nvmlDeviceGetTotalEccErrors, nvmlMemoryErrorType_t, nvmlEccCounterType_t, unsigned long long*)

// Every card can be told whether it is a part of one.
nvmlReturn_t DECLDIR nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned* is_part) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!is_part) return NVML_ERROR_INVALID_ARGUMENT;
    *is_part = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!mode) return NVML_ERROR_INVALID_ARGUMENT;
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
    *major = emulator::kCapabilityMajor;
    *minor = emulator::kCapabilityMinor;
    return NVML_SUCCESS;
}
