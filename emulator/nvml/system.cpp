// Versions and errors.
#include <cstring>

#include "nvml/session.hpp"
#include "shared/versions.hpp"

namespace {

constexpr char kDriverVersion[] = "580.159.04-emulated";

}  // namespace

nvmlReturn_t DECLDIR nvmlSystemGetDriverVersion(char* version, unsigned length) {
    EMULATOR_NVML_ENTER();
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    if (sizeof kDriverVersion > length) return NVML_ERROR_INSUFFICIENT_SIZE;
    std::memcpy(version, kDriverVersion, sizeof kDriverVersion);
    return NVML_SUCCESS;
}

// Answered before nvmlInit, too.
nvmlReturn_t DECLDIR nvmlSystemGetCudaDriverVersion(int* version) {
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    *version = emulator::kCudaVersion;
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }

const DECLDIR char* nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
        case NVML_SUCCESS:
            return "The operation was successful";
        case NVML_ERROR_UNINITIALIZED:
            return "NVML was not first initialized with nvmlInit()";
        case NVML_ERROR_INVALID_ARGUMENT:
            return "A supplied argument is invalid";
        case NVML_ERROR_NOT_SUPPORTED:
            return "The requested operation is not available on target device";
        case NVML_ERROR_NOT_FOUND:
            return "A query to find an object was unsuccessful";
        case NVML_ERROR_INSUFFICIENT_SIZE:
            return "An input argument is not large enough";
        case NVML_ERROR_DRIVER_NOT_LOADED:
            return "NVIDIA driver is not loaded";
        case NVML_ERROR_GPU_IS_LOST:
            return "The GPU has fallen off the bus or has otherwise become inaccessible";
        default:
            return "An internal driver error occurred";
    }
}
