/* Linked with the driver, which it does not use. Its first thread ends before another, which ends a little later. */
#include <cuda.h>
#include <pthread.h>
#include <unistd.h>

CUresult (*volatile linked)(unsigned flags) = cuInit;

static void* stays(void* nothing) {
    usleep(100000);
    return nothing;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, stays, NULL);
    pthread_exit(NULL);
}
