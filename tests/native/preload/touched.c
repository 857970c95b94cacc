/* A driver that does nothing, and writes down what a touch asks of it: a letter each, to the file that TOUCHES names;
   a large one where the caller takes signals of the program, or none of the C library or of faults.
   ANSWER: what its streams say when they are asked whether they are done, and what a fill of them gives. */
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Under the names of before CUDA 13, which the library asks for. */
#undef cuDeviceGetUuid
#undef cuEventElapsedTime

static __thread CUcontext current;
static int it;
#define IT ((void*)&it)

static CUresult notes(char letter) {
    const int file = open(getenv("TOUCHES"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    const CUresult result = write(file, &letter, 1) == 1 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    close(file);
    return result;
}

static CUresult answer(void) {
    const char* said = getenv("ANSWER");
    return said == NULL ? CUDA_SUCCESS : (CUresult)atoi(said);
}

#define DOES(name, arguments, what) \
    CUresult name arguments { return what, CUDA_SUCCESS; }
#define NOTHING(name, arguments) DOES(name, arguments, (void)0)

#pragma GCC diagnostic ignored "-Wunused-parameter"
NOTHING(cuInit, (unsigned flags))
DOES(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), *context = IT)
DOES(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned* flags, int* active), *active = 0)
NOTHING(cuDevicePrimaryCtxReset_v2, (CUdevice device))
DOES(cuCtxSetCurrent, (CUcontext context), current = context)
DOES(cuCtxGetCurrent, (CUcontext * context), *context = current)
DOES(cuCtxPushCurrent_v2, (CUcontext context), current = context)
DOES(cuCtxPopCurrent_v2, (CUcontext * context), current = NULL)
DOES(cuCtxGetDevice, (CUdevice * device), *device = 0)
NOTHING(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device))
DOES(cuModuleLoadData, (CUmodule * module, const void* image), *module = IT)
DOES(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name), *function = IT)
DOES(cuStreamCreate, (CUstream * stream, unsigned flags), *stream = IT)
DOES(cuMemAlloc_v2, (CUdeviceptr * memory, size_t size), *memory = 4096)
NOTHING(cuStreamSynchronize, (CUstream stream))
NOTHING(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))
DOES(cuStreamEndCapture, (CUstream stream, CUgraph* graph), *graph = IT)
DOES(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status), *status = CU_STREAM_CAPTURE_STATUS_NONE)
NOTHING(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode))
DOES(cuEventCreate, (CUevent * event, unsigned flags), *event = IT)
NOTHING(cuEventRecord, (CUevent event, CUstream stream))
NOTHING(cuEventQuery, (CUevent event))
NOTHING(cuEventElapsedTime, (float* time, CUevent from, CUevent to))
NOTHING(cuLaunchKernel, (CUfunction function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                         unsigned block_z, unsigned shared, CUstream stream, void** parameters, void** more))

CUresult cuStreamQuery(CUstream stream) { return notes('q'), answer(); }
/* A real one may start a thread here, whose signals are those of its caller. By 32 and 33 the C library tells threads
   that one of them is cancelled or becomes another user; before glibc 2.32 it does not see to it itself that they come.
   For a fault whose signal is blocked the kernel ends the process. */
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
    const unsigned long own = 3ul << 31 | 1ul << (SIGSEGV - 1) | 1ul << (SIGSYS - 1);
    unsigned long blocked = 0;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &blocked, sizeof(blocked));
    return function(argument), notes((blocked & 1ul << (SIGUSR1 - 1)) != 0 && (blocked & own) == 0 ? 'h' : 'H');
}
CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t size, CUstream stream) {
    return current == NULL ? CUDA_ERROR_INVALID_CONTEXT : notes('m');
}
