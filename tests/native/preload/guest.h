/* What the programs that run under librunlist.so have in common. C11, and nothing of Runlist. */
#pragma once

#include <cuda.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define DLSYM_VERSION "GLIBC_2.2.5"
#else
#define DLSYM_VERSION "GLIBC_2.17"
#endif

static const size_t kMiB = (size_t)1 << 20;

/* Prints what a call that must succeed said instead, and ends the process. */
#define MUST(call) must((int)(call), #call)

static inline void must(int result, const char* call) {
    if (result == 0) return;
    fprintf(stderr, "%s: %d\n", call, result);
    _Exit(9);
}

/* A context on the first GPU, current in this thread. */
static inline CUcontext begin_on(int device) {
    CUcontext context;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    return context;
}

static inline CUcontext begin(void) { return begin_on(0); }

/* Bytes in use of what the process may use. */
static inline size_t used(void) {
    size_t free = 0, total = 0;
    MUST(cuMemGetInfo(&free, &total));
    return total - free;
}

/* The kernel accumulate_lcg of the PTX file that KERNELS names. */
static inline CUfunction accumulate(void) {
    static char image[1 << 20];
    CUmodule module;
    CUfunction function;
    FILE* file = fopen(getenv("KERNELS"), "rb");
    if (file == NULL || fread(image, 1, sizeof(image) - 1, file) == 0) must(1, "KERNELS");
    fclose(file);
    MUST(cuModuleLoadData(&module, image));
    MUST(cuModuleGetFunction(&function, module, "accumulate_lcg"));
    return function;
}

static inline CUresult launch(CUfunction function, CUdeviceptr state, uint64_t count, uint32_t rounds,
                              CUstream stream) {
    void* parameters[] = {&state, &count, &rounds};
    return cuLaunchKernel(function, (unsigned)((count + 255) / 256), 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
}
