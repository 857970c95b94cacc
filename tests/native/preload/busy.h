/* What programs have in common whose client 0 is busy while another one's calls mean something to what is queued. */
#pragma once

#include "clients.h"

static CUdeviceptr second;
static pthread_t opener;

static inline void buffers(void) {
    other();
    MUST(cuMemAlloc(&second, kWords * 4));
    MUST(cuMemsetD32(second, 1, kWords));
}

/* Client 0 is busy until a thread opens it a little later; this thread is client 1. */
static inline CUstream busy_for_a_while(void) {
    *flag_here = 0;
    if (plain()) *flag_here = 1; /* there is nobody to wait for */
    const CUstream first = busy();
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    return first;
}

static inline void idle_again(CUstream first) {
    MUST(pthread_join(opener, NULL));
    is_client(0);
    MUST(cuStreamSynchronize(first));
    MUST(cuStreamDestroy(first));
    is_client(1);
}
