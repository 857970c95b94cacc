// Versions and errors.
#include <cstring>

#include "session.hpp"

namespace {

constexpr char kDriverVersion[] = "580.159.04-emulated";
constexpr char kNvmlVersion[] = "13.580.159.04";
constexpr int kCudaVersion = 13000;

nvmlReturn_t give(const char* text, char* out, unsigned length) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (std::strlen(text) + 1 > length) return NVML_ERROR_INSUFFICIENT_SIZE;
    std::strcpy(out, text);
    return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t DECLDIR nvmlSystemGetDriverVersion(char* version, unsigned length) {
    EMULATOR_NVML_ENTER();
    return give(kDriverVersion, version, length);
}

nvmlReturn_t DECLDIR nvmlSystemGetNVMLVersion(char* version, unsigned length) {
    return give(kNvmlVersion, version, length);
}

nvmlReturn_t DECLDIR nvmlSystemGetCudaDriverVersion(int* version) {
    if (!version) return NVML_ERROR_INVALID_ARGUMENT;
    *version = kCudaVersion;
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
