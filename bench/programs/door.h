/*
 * Where requests to the driver pass, before a preloaded library and behind it. The program defines `behind_ns` and
 * `passed_on`, for both.
 */
#pragma once

#include <dlfcn.h>
#include <stdarg.h>
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

/* What becomes of a request that comes by the `ioctl` of this file. */
static int came_by(door next, int file, unsigned long request, void* argument);

int ioctl(int file, unsigned long request, ...) {
    static door next;
    va_list arguments;
    va_start(arguments, request);
    void* argument = va_arg(arguments, void*);
    va_end(arguments);
    if (!next) *(void**)&next = dlsym(RTLD_NEXT, "ioctl");
    return came_by(next, file, request, argument);
}
