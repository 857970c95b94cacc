/* Where requests to the driver pass, before a preloaded library and behind it. The program defines both names. */
#pragma once

#include <stdint.h>
#include <time.h>

typedef int (*door)(int file, unsigned long request, void* argument);

/* When behind.c was set up; 0 without it. */
extern uint64_t behind_ns;

/* A request that the library has passed on, or that it makes itself; `next` is where it goes. */
int passed_on(door next, int file, unsigned long request, void* argument);

static inline uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
