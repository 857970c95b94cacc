/* A libcuda.so.1 that does no work, and in which a wait never ends. */
#include <unistd.h>

int cuInit(unsigned flags);
int cuStreamSynchronize(void* stream);

int cuInit(unsigned flags) { return flags != 0; }

int cuStreamSynchronize(void* stream) {
    (void)stream;
    for (;;) pause();
}
