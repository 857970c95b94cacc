// cuGetProcAddress: every entry point by name and version, from one list.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "cuda/driver/exports.hpp"
#include "cuda/driver/per_thread.hpp"

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
#include "cuda/entry/points.inc"
};

#undef ENTRY_POINT
#undef STREAM_ENTRY_POINT

// Functions that take no stream, copies that wait, have another ending to their per-thread form's name.
template <typename T>
constexpr bool names_stream = std::is_same_v<T, CUstream> || std::is_same_v<T, const CUlaunchConfig*>;
template <typename... Arguments>
constexpr bool takes_stream(CUresult(CUDAAPI*)(Arguments...)) {
    return (names_stream<Arguments> || ...);
}

// Gives the per-thread forms the names that cuda.h calls them by: programs built with
// CUDA_API_PER_THREAD_DEFAULT_STREAM link against these, and dlsym finds what cuGetProcAddress returns. Never called.
template <typename = void>
[[gnu::noinline]] void name_per_thread_forms() {
#define ENTRY_POINT(name, since, symbol)
#define STREAM_ENTRY_POINT(name, since, symbol)                                           \
    if constexpr (takes_stream(&symbol))                                                  \
        asm volatile(".globl " #symbol "_ptsz\n.set " #symbol                             \
                     "_ptsz, %c0" ::"i"(&emulator::cuda::per_thread::Of<&symbol>::call)); \
    else                                                                                  \
        asm volatile(".globl " #symbol "_ptds\n.set " #symbol                             \
                     "_ptds, %c0" ::"i"(&emulator::cuda::per_thread::Of<&symbol>::call));
#include "cuda/entry/points.inc"
}
[[gnu::used]] constexpr auto kNamed = &name_per_thread_forms<>;

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
