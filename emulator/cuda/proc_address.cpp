// cuGetProcAddress: every entry point by name and version, from one list.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "driver.hpp"
#include "entry_points.hpp"

namespace {

struct EntryPoint {
    const char* name;
    int since;  // CUDA version
    void* legacy;
    void* per_thread;
};

#define ENTRY_POINT(name, since, symbol) \
    {#name, since, reinterpret_cast<void*>(&symbol), reinterpret_cast<void*>(&symbol)},
#define STREAM_ENTRY_POINT(name, since, symbol)      \
    {#name, since, reinterpret_cast<void*>(&symbol), \
     reinterpret_cast<void*>(&emulator::cuda::per_thread::Of<&symbol>::call)},
const EntryPoint kEntryPoints[] = {
#include "entry_points.inc"
};

// The newest version of `name` that `version` knows.
const EntryPoint* find(const char* name, int version, bool& known) {
    const EntryPoint* found = nullptr;
    known = false;
    for (const EntryPoint& entry : kEntryPoints) {
        if (std::strcmp(entry.name, name) != 0) continue;
        known = true;
        if (entry.since <= version && (!found || entry.since > found->since)) found = &entry;
    }
    return found;
}

}  // namespace

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
    if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
    bool known = false;
    const EntryPoint* entry = find(symbol, version, known);
    *function = nullptr;
    if (entry) *function = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? entry->per_thread : entry->legacy;
    if (status)
        *status = entry   ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (entry) return CUDA_SUCCESS;
    return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuGetProcAddress_v1(const char* symbol, void** function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
