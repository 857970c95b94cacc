/*
 * How soon so much memory is to be had: for each line "BYTES" of its standard input it tries until it has them, frees
 * them, and prints the milliseconds that this took; -1 when they were not to be had within ten seconds.
 */
#define _GNU_SOURCE
#include <unistd.h>

#include "cuda.h"

static const double kPatienceNs = 10e9;

int main(void) {
    const struct cuda cuda = by_dlsym(driver_library());
    char line[64];
    enter(&cuda);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        const size_t bytes = strtoull(line, NULL, 0);
        const double began = now_ns(CLOCK_MONOTONIC);
        double took = -1;
        address memory;
        while (now_ns(CLOCK_MONOTONIC) - began < kPatienceNs) {
            const int code = cuda.cuMemAlloc(&memory, bytes);
            if (code == CUDA_SUCCESS) {
                took = (now_ns(CLOCK_MONOTONIC) - began) / 1e6;
                CHECK(cuda.cuMemFree(memory));
                break;
            }
            if (code != CUDA_ERROR_OUT_OF_MEMORY) fail("cuMemAlloc", code);
            usleep(1000);
        }
        printf("%.3f\n", took);
    }
    return 0;
}
