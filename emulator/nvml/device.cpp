// Devices: names and memory.
#include <cstring>
#include <string>

#include "nvml/session.hpp"
#include "shared/uuid.hpp"

namespace {

constexpr char kName[] = "Emulated H200";

nvmlDevice_t handle_of(emulator::nvml::Device& device) { return reinterpret_cast<nvmlDevice_t>(&device); }

nvmlReturn_t give(const std::string& text, char* out, unsigned length) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (text.size() + 1 > length) return NVML_ERROR_INSUFFICIENT_SIZE;
    std::memcpy(out, text.c_str(), text.size() + 1);
    return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t DECLDIR nvmlDeviceGetCount_v2(unsigned* count) {
    EMULATOR_NVML_ENTER();
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = static_cast<unsigned>(session.devices.size());
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
    EMULATOR_NVML_ENTER();
    if (!device || index >= session.devices.size()) return NVML_ERROR_INVALID_ARGUMENT;
    *device = handle_of(session.devices[index]);
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
    EMULATOR_NVML_ENTER();
    if (!uuid || !device) return NVML_ERROR_INVALID_ARGUMENT;
    for (emulator::nvml::Device& candidate : session.devices) {
        const auto memory = session.memory(candidate.index);
        if (!memory) return NVML_ERROR_GPU_IS_LOST;
        if (emulator::uuid_text(memory->uuid) != uuid) continue;
        *device = handle_of(candidate);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t DECLDIR nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* out) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    *out = index;
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    return give(kName, name, length);
}

nvmlReturn_t DECLDIR nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    const auto memory = session.memory(index);
    if (!memory) return NVML_ERROR_GPU_IS_LOST;
    return give(emulator::uuid_text(memory->uuid), uuid, length);
}

nvmlReturn_t DECLDIR nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* out) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    const auto memory = session.memory(index);
    if (!memory) return NVML_ERROR_GPU_IS_LOST;
    *out = {.total = memory->total, .free = memory->free, .used = memory->total - memory->free};
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* out) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!out || out->version != nvmlMemory_v2) return NVML_ERROR_INVALID_ARGUMENT;
    const auto memory = session.memory(index);
    if (!memory) return NVML_ERROR_GPU_IS_LOST;
    *out = {.version = nvmlMemory_v2,
            .total = memory->total,
            .reserved = 0,
            .free = memory->free,
            .used = memory->total - memory->free};
    return NVML_SUCCESS;
}
