// cuda.h with its functions exported: what a source file here defines of them, programs find in the library.
#pragma once

#include <cstddef>

#pragma GCC visibility push(default)
#include <cuda.h>

// cuda.h calls the newest version by the bare name. These are functions of their own here.
#undef cuGraphAddDependencies
#undef cuGraphAddKernelNode
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphExecUpdate
#undef cuGraphInstantiate
#undef cuGraphKernelNodeGetParams
#undef cuGraphKernelNodeSetParams
#undef cuStreamBeginCapture
#undef cuStreamGetCaptureInfo
#undef cuIpcOpenMemHandle
#undef cuMemAdvise
#undef cuMemPrefetchAsync

// Older versions of entry points, which cuda.h no longer declares.
extern "C" {
CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                        std::size_t count);
CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS_v1* parameters);
CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS_v1* parameters);
CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                                   CUgraphExecUpdateResult* updated);
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                                    std::size_t log_bytes);
CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                                       std::size_t log_bytes);
CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* parameters);
CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* parameters);
CUresult CUDAAPI cuStreamBeginCapture(CUstream stream);
CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id);
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** nodes, std::size_t* count);
CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags);
CUresult CUDAAPI cuMemAdvise(CUdeviceptr address, std::size_t bytes, CUmem_advise advice, CUdevice device);
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr address, std::size_t bytes, CUdevice device, CUstream stream);
CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);
CUresult CUDAAPI cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count, unsigned flags,
                                CUdevice device);
CUresult CUDAAPI cuEventElapsedTime_v1(float* milliseconds, CUevent start, CUevent end) __asm__("cuEventElapsedTime");
CUresult CUDAAPI cuGetProcAddress_v1(const char* symbol, void** function, int version,
                                     cuuint64_t flags) __asm__("cuGetProcAddress");
CUresult CUDAAPI cuDeviceGetUuid_v1(CUuuid* uuid, CUdevice device) __asm__("cuDeviceGetUuid");
}
#pragma GCC visibility pop
