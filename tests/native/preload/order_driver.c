/* Every function of cuda.h, as a driver that does nothing and says in which order it was called: what is not here is
   made of the header (FUNCTIONS, by test_operations_order.py). */
#include <cuda.h>
#include <stdatomic.h>
#include <string.h>

#include "order.h"

enum { kMost = 1024 };

static struct {
    const char* name;
    void* stream;
} seen[kMost];
static atomic_int count, busy;

void order_reset(void) { count = 0; }
void order_busy(int now) { busy = now; }

int order_of(const char* name, void* stream) {
    for (int at = 0; at < count && at < kMost; ++at)
        if (!strcmp(seen[at].name, name) && (stream == NULL || seen[at].stream == stream)) return at;
    return -1;
}

static CUresult called(const char* name, void* stream) {
    const int at = atomic_fetch_add(&count, 1);
    if (at < kMost) seen[at].stream = stream, seen[at].name = name;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) { return *context = CONTEXT, CUDA_SUCCESS; }
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) { return (void)context, CUDA_SUCCESS; }
CUresult CUDAAPI cuStreamGetCtx(CUstream stream, CUcontext* context) {
    return (void)stream, *context = CONTEXT, CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamGetFlags(CUstream stream, unsigned* flags) {
    return (void)stream, *flags = CU_STREAM_NON_BLOCKING, CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    return (void)stream, *status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
}
CUresult CUDAAPI cuStreamQuery(CUstream stream) {
    return stream == FIRST && busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
CUresult CUDAAPI cuEventQuery(CUevent event) { return (void)event, CUDA_SUCCESS; }
CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned flags) {
    return (void)flags, *event = (CUevent)0x99000, CUDA_SUCCESS;
}
CUresult CUDAAPI cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
    (void)function, (void)index, (void)offset, (void)size;
    return CUDA_ERROR_INVALID_VALUE; /* it has none */
}

#include "functions.h"
