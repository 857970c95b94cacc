/* Another library that is preloaded and stands before launches, copies and waits, as profilers do. It hands on to the
   next. */
#include <dlfcn.h>

#include "guest.h"

#define NEXT(name)                 \
    static __typeof__(name)* next; \
    if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, #name)

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream,
                                void** parameters, void** extra) {
    NEXT(cuLaunchKernel);
    return next(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra);
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
    NEXT(cuStreamSynchronize);
    return next(stream);
}

CUresult CUDAAPI cuMemcpyDtoH_v2(void* host, CUdeviceptr device, size_t bytes) {
    NEXT(cuMemcpyDtoH_v2);
    return next(host, device, bytes);
}
