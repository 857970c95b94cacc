// cuda.h with its functions exported: what a source file here defines of them, programs find in the library.
#pragma once

#pragma GCC visibility push(default)
#include <cuda.h>

// Older versions of entry points, which cuda.h no longer declares.
extern "C" {
CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);
CUresult CUDAAPI cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count, unsigned flags,
                                CUdevice device);
CUresult CUDAAPI cuEventElapsedTime_v1(float* milliseconds, CUevent start, CUevent end) __asm__("cuEventElapsedTime");
CUresult CUDAAPI cuGetProcAddress_v1(const char* symbol, void** function, int version,
                                     cuuint64_t flags) __asm__("cuGetProcAddress");
CUresult CUDAAPI cuDeviceGetUuid_v1(CUuuid* uuid, CUdevice device) __asm__("cuDeviceGetUuid");
}
#pragma GCC visibility pop
