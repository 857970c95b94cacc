/* A library between another one that is preloaded and the driver: a launch stands still in it until it may go on. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

#include "guest.h"

void pause_next(void);
void wait_for_pause(void);
void go_on(void);

static atomic_int wanted, paused, goes;

void pause_next(void) {
    paused = goes = 0;
    wanted = 1;
}

void wait_for_pause(void) {
    while (!paused) usleep(1000);
}

void go_on(void) { goes = 1; }

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                                unsigned threads_y, unsigned threads_z, unsigned bytes, CUstream stream, void** values,
                                void** extra) {
    static __typeof__(&cuLaunchKernel) next;
    if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "cuLaunchKernel");
    if (atomic_exchange(&wanted, 0)) {
        paused = 1;
        while (!goes) usleep(1000);
    }
    return next(function, x, y, z, threads_x, threads_y, threads_z, bytes, stream, values, extra);
}
