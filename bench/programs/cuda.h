/*
 * The CUDA driver API as far as these programs use it, found when they run: by dlsym, or by cuGetProcAddress.
 *
 * Nothing of the toolkit is needed to build them, and both ways are those of real programs: a library that stands
 * between must be met on either.
 */
#pragma once

#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    STREAM_NON_BLOCKING = 1,
    CAPTURE_THREAD_LOCAL = 1,
    MEMORY_MAPPED = 2
};

typedef unsigned long long address;

/* CUmemAllocationProp: pinned memory of device 0. */
struct properties {
    int type, handle_types, location_type, location_id;
    void* windows;
    unsigned char flags[8];
};

/* name, symbol, CUDA version that brought this form, parameters */
#define FUNCTIONS(FUNCTION)                                                                                     \
    FUNCTION(cuInit, cuInit, 2000, (unsigned flags))                                                            \
    FUNCTION(cuDeviceGet, cuDeviceGet, 2000, (int* device, int ordinal))                                        \
    FUNCTION(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (void** context, int device))            \
    FUNCTION(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (void* context))                                           \
    FUNCTION(cuModuleLoadData, cuModuleLoadData, 2000, (void** module, const void* image))                      \
    FUNCTION(cuModuleGetFunction, cuModuleGetFunction, 2000, (void** function, void* module, const char* name)) \
    FUNCTION(cuStreamCreate, cuStreamCreate, 2000, (void** stream, unsigned flags))                             \
    FUNCTION(cuStreamQuery, cuStreamQuery, 2000, (void* stream))                                                \
    FUNCTION(cuStreamSynchronize, cuStreamSynchronize, 2000, (void* stream))                                    \
    FUNCTION(cuLaunchKernel, cuLaunchKernel, 4000,                                                              \
             (void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,     \
              unsigned shared, void* stream, void** parameters, void** extra))                                  \
    FUNCTION(cuMemAlloc, cuMemAlloc_v2, 3020, (address * memory, size_t bytes))                                 \
    FUNCTION(cuMemFree, cuMemFree_v2, 3020, (address memory))                                                   \
    FUNCTION(cuMemsetD8, cuMemsetD8_v2, 3020, (address memory, unsigned char value, size_t bytes))              \
    FUNCTION(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, (void* host, address memory, size_t bytes))                   \
    FUNCTION(cuMemHostAlloc, cuMemHostAlloc, 2020, (void** host, size_t bytes, unsigned flags))                 \
    FUNCTION(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020,                                     \
             (address * memory, void* host, unsigned flags))                                                    \
    FUNCTION(cuMemAllocAsync, cuMemAllocAsync, 11020, (address * memory, size_t bytes, void* stream))           \
    FUNCTION(cuMemFreeAsync, cuMemFreeAsync, 11020, (address memory, void* stream))                             \
    FUNCTION(cuMemCreate, cuMemCreate, 10020,                                                                   \
             (address * handle, size_t bytes, const struct properties* properties, unsigned long long flags))   \
    FUNCTION(cuMemRelease, cuMemRelease, 10020, (address handle))                                               \
    FUNCTION(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020,                                 \
             (void* shareable, address handle, int type, unsigned long long flags))                             \
    FUNCTION(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020,                             \
             (address * handle, void* shareable, int type))                                                     \
    FUNCTION(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, (void* stream, int mode))                    \
    FUNCTION(cuStreamEndCapture, cuStreamEndCapture, 10000, (void* stream, void** graph))                       \
    FUNCTION(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040,                                   \
             (void** executable, void* graph, unsigned long long flags))                                        \
    FUNCTION(cuGraphLaunch, cuGraphLaunch, 10000, (void* executable, void* stream))

/* Functions that the driver lacks are NULL. */
struct cuda {
#define FUNCTION(name, symbol, version, parameters) int(*name) parameters;
    FUNCTIONS(FUNCTION)
#undef FUNCTION
};

static void fail(const char* what, int code) {
    fprintf(stderr, "%s: %d\n", what, code);
    exit(1);
}

#define CHECK(call)                                    \
    do {                                               \
        const int code_ = (call);                      \
        if (code_ != CUDA_SUCCESS) fail(#call, code_); \
    } while (0)

static inline void* driver_library(void) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) fail(dlerror(), 0);
    return library;
}

static inline struct cuda by_dlsym(void* library) {
    struct cuda cuda;
#define FUNCTION(name, symbol, version, parameters) *(void**)&cuda.name = dlsym(library, #symbol);
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    return cuda;
}

static inline struct cuda by_proc_address(void* library) {
    int (*get)(const char*, void**, int, uint64_t, int*);
    struct cuda cuda = {0};
    int found;
    *(void**)&get = dlsym(library, "cuGetProcAddress_v2");
    if (!get) fail("the driver has no cuGetProcAddress_v2", 0);
#define FUNCTION(name, symbol, version, parameters) \
    if (get(#name, (void**)&cuda.name, version, 0, &found) != CUDA_SUCCESS) *(void**)&cuda.name = NULL;
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    return cuda;
}

/* The primary context of device 0, made and current. */
static inline void enter(const struct cuda* cuda) {
    void* context;
    int device;
    CHECK(cuda->cuInit(0));
    CHECK(cuda->cuDeviceGet(&device, 0));
    CHECK(cuda->cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuda->cuCtxSetCurrent(context));
}

/* The kernels of the PTX in a file, as a module. */
static inline void* load_kernels(const struct cuda* cuda, const char* path) {
    static char ptx[1 << 20];
    void* module;
    FILE* file = fopen(path, "r");
    if (!file) fail(path, 0);
    ptx[fread(ptx, 1, sizeof ptx - 1, file)] = 0;
    fclose(file);
    CHECK(cuda->cuModuleLoadData(&module, ptx));
    return module;
}

static inline void* kernel_of(const struct cuda* cuda, void* module, const char* name) {
    void* function;
    CHECK(cuda->cuModuleGetFunction(&function, module, name));
    return function;
}

/* The kernel fill_u32 of the PTX in a file. */
static inline void* load_kernel(const struct cuda* cuda, const char* path) {
    return kernel_of(cuda, load_kernels(cuda, path), "fill_u32");
}

/* Queues a kernel that has nothing to do: it fills an array of no elements. */
static inline int launch_empty(const struct cuda* cuda, void* function, void* stream) {
    uint64_t array = 0, count = 0;
    uint32_t value = 0;
    void* parameters[] = {&array, &value, &count};
    return cuda->cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static inline double now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static inline void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity", cpu);
}
