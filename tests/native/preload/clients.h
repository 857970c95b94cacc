/* What programs of clients have in common: a context, a kernel that blocks client 0, one that fills memory. With PLAIN
   in the environment nothing is started, and the same calls go straight to the driver. */
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "guest.h"
#include "runlist_operations.h"

enum { kWords = 4096 };

static CUcontext context;
static CUmodule module;
static CUfunction blocker, fill, lcg;
static CUdeviceptr flag;
static uint32_t* flag_here;

static inline void* needed(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    if (found == NULL) must(1, name);
    return found;
}

#define RL(name) ((__typeof__(&name))(uintptr_t)needed(#name))

static inline bool plain(void) { return getenv("PLAIN") != NULL; }

static char image[1 << 20];

static inline void make_context(void) {
    context = begin();
    FILE* file = fopen(getenv("KERNELS"), "rb");
    if (file == NULL || fread(image, 1, sizeof(image) - 1, file) == 0) must(1, "KERNELS");
    fclose(file);
    MUST(cuModuleLoadData(&module, image));
    MUST(cuModuleGetFunction(&blocker, module, "wait_flag_u32"));
    MUST(cuModuleGetFunction(&fill, module, "fill_u32"));
    MUST(cuModuleGetFunction(&lcg, module, "accumulate_lcg"));
    MUST(cuMemHostAlloc((void**)&flag_here, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(cuMemHostGetDevicePointer(&flag, flag_here, 0));
    *flag_here = 0;
}

static inline void prepare(void) {
    make_context();
    if (!plain()) MUST(RL(rl_operations_start)(3));
}

static inline void is_client(int index) {
    MUST(cuCtxSetCurrent(context));
    if (!plain()) MUST(RL(rl_operations_client)(index));
}

static inline struct rl_operations_counters counted(int client) {
    struct rl_operations_counters counters;
    MUST(RL(rl_operations_counters)(client, &counters));
    return counters;
}

static inline void blocks(CUstream stream) {
    uint32_t value = 1;
    void* parameters[] = {&flag, &value};
    MUST(cuLaunchKernel(blocker, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static inline void opens(void) { *(volatile uint32_t*)flag_here = 1; }

static inline void fills(CUdeviceptr to, uint32_t value, CUstream stream) {
    uint64_t count = kWords;
    void* parameters[] = {&to, &value, &count};
    MUST(cuLaunchKernel(fill, kWords / 256, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
    memset(parameters, 0, sizeof(parameters)); /* nobody may look at them any more */
    value = 0xBADBAD;
}

/* Client 0 is busy until opens(); this thread goes on as client 1. */
static inline CUstream busy(void) {
    CUstream first;
    is_client(0);
    MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    blocks(first);
    is_client(1);
    return first;
}

static CUdeviceptr memory;
static CUstream own;
static CUevent event;

static inline void other(void) {
    MUST(cuMemAlloc(&memory, kWords * 4));
    MUST(cuMemsetD32(memory, 1, kWords));
    MUST(cuCtxSynchronize());
    is_client(1);
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
}

static inline uint32_t word_of(CUdeviceptr of) {
    uint32_t word;
    MUST(cuMemcpyDtoH(&word, of, sizeof(word)));
    return word;
}

static inline void* opens_later(void* unused) {
    (void)unused;
    usleep(100000);
    opens();
    return NULL;
}
