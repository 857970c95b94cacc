/* A function of the host that faults, and a handler that lets it go on. */
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guest.h"

static char* guarded;
static volatile int faults; /* that were handled */

static void opens_page(int number) {
    (void)number;
    ++faults;
    if (mprotect(guarded, 4096, PROT_READ | PROT_WRITE)) _exit(5);
}

static void CUDA_CB writes_there(void* unused) {
    (void)unused;
    *guarded = 1;
}

/* Has a stream call it, now or in what it captures. */
static inline CUresult call_what_faults(CUstream stream) {
    guarded = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, opens_page);
    return cuLaunchHostFunc(stream, writes_there, NULL);
}
