// cuda.h with its functions exported: what a source file here defines of them, programs find in the library.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)
#include <cuda.h>

// cuda.h calls the newest version by the bare name. These are functions of their own here.
#undef cuGraphAddDependencies
#undef cuMemPrefetchAsync

// Older versions of entry points, which cuda.h no longer declares.
extern "C" {
CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                        std::size_t count);
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** nodes, std::size_t* count);
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr address, std::size_t bytes, CUdevice device, CUstream stream);
CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);
CUresult CUDAAPI cuEventElapsedTime_v1(float* milliseconds, CUevent start, CUevent end) __asm__("cuEventElapsedTime");
CUresult CUDAAPI cuGetProcAddress_v1(const char* symbol, void** function, int version,
                                     cuuint64_t flags) __asm__("cuGetProcAddress");
CUresult CUDAAPI cuDeviceGetUuid_v1(CUuuid* uuid, CUdevice device) __asm__("cuDeviceGetUuid");
}
#pragma GCC visibility pop
