// cuGetExportTable: functions of a driver that have a place in a table instead of a name.
//
// One table is here, by which NVIDIA's CUDA runtime learns the primary context: so a program reaches the driver in a
// way that nothing between the two sees. Identifier and place are as CUDA's runtimes 12.1 to 13.5 ask for them. The
// runtime itself starts on NVIDIA's driver alone, which proves to it what it is by another table:
// docs/emulated-gpu.md.
#include <cstddef>
#include <cstring>

#include "cuda/context/context.hpp"

namespace {

constexpr unsigned char kRuntimeInterface[] = {0x6B, 0xD5, 0xFB, 0x6C, 0x5B, 0xF4, 0xE7, 0x4A,
                                               0x89, 0x87, 0xD9, 0x39, 0x12, 0xFD, 0x9D, 0xF9};

union Place {
    std::size_t bytes;  // of the whole table, at its first place
    CUresult (*function)(CUcontext*, CUdevice);
};

const Place kRuntimeTable[3] = {
    {.bytes = sizeof kRuntimeTable},
    {.function = nullptr},
    {.function = &emulator::cuda::name_primary},
};

}  // namespace

CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid* id) {
    if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
    if (std::memcmp(id->bytes, kRuntimeInterface, sizeof kRuntimeInterface) != 0) return CUDA_ERROR_NOT_FOUND;
    *table = kRuntimeTable;
    return CUDA_SUCCESS;
}
