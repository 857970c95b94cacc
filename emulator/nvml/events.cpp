// Events of devices: XIDs that somebody writes to the file `xid` in the emulated GPU's folder, a line "GPU XID" each.
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "nvml/session.hpp"
#include "shared/protocol.hpp"

namespace {

constexpr int kLookEveryMs = 10;

struct EventSet {
    std::vector<std::uint32_t> gpus;
    std::streamoff at;  // how much of the file was told already
};

std::string file_name() {
    const char* directory = std::getenv(emulator::names::kEmulatedGpu);
    return std::string(directory ? directory : "") + "/xid";
}

std::streamoff written() {
    std::ifstream file(file_name(), std::ios::ate);
    return file ? static_cast<std::streamoff>(file.tellg()) : 0;
}

// The next whole line's GPU and XID.
bool next(EventSet& set, std::uint32_t& gpu, std::uint64_t& xid) {
    std::ifstream file(file_name());
    file.seekg(set.at);
    std::string line;
    if (!std::getline(file, line) || file.eof()) return false;
    set.at += static_cast<std::streamoff>(line.size()) + 1;
    char* rest = nullptr;
    gpu = static_cast<std::uint32_t>(std::strtoul(line.c_str(), &rest, 10));
    xid = std::strtoull(rest, nullptr, 10);
    return true;
}

EventSet* of(nvmlEventSet_t set) { return reinterpret_cast<EventSet*>(set); }

}  // namespace

nvmlReturn_t DECLDIR nvmlEventSetCreate(nvmlEventSet_t* set) {
    EMULATOR_NVML_ENTER();
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    *set = reinterpret_cast<nvmlEventSet_t>(new EventSet{.gpus = {}, .at = written()});
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long* types) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!types) return NVML_ERROR_INVALID_ARGUMENT;
    *types = nvmlEventTypeXidCriticalError;
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    EMULATOR_NVML_ENTER_DEVICE(device);
    if (!set) return NVML_ERROR_INVALID_ARGUMENT;
    if (types != nvmlEventTypeXidCriticalError) return NVML_ERROR_NOT_SUPPORTED;
    of(set)->gpus.push_back(index);
    return NVML_SUCCESS;
}

nvmlReturn_t DECLDIR nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned timeout_ms) {
    if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned waited = 0;; waited += kLookEveryMs) {
        {
            EMULATOR_NVML_ENTER();
            std::uint32_t gpu = 0;
            std::uint64_t xid = 0;
            while (next(*of(set), gpu, xid)) {
                if (std::ranges::find(of(set)->gpus, gpu) == of(set)->gpus.end() || gpu >= session.devices.size())
                    continue;
                *data = {};
                data->device = reinterpret_cast<nvmlDevice_t>(&session.devices[gpu]);
                data->eventType = nvmlEventTypeXidCriticalError;
                data->eventData = xid;
                return NVML_SUCCESS;
            }
            if (!session.memory(0)) return NVML_ERROR_GPU_IS_LOST;
        }
        if (waited >= timeout_ms) return NVML_ERROR_TIMEOUT;
        ::poll(nullptr, 0, kLookEveryMs);
    }
}

nvmlReturn_t DECLDIR nvmlEventSetFree(nvmlEventSet_t set) {
    delete of(set);
    return NVML_SUCCESS;
}
