/*
 * Preloaded behind the library, for `start`: when it is set up the library is about to be, and each request to the
 * driver that the library passes on comes by here. Everything is told to the program, which exports the rest.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>

#include "door.h"

__attribute__((constructor)) static void set_up(void) { behind_ns = monotonic_ns(); }

int ioctl(int file, unsigned long request, ...) {
    static door next;
    va_list arguments;
    va_start(arguments, request);
    void* argument = va_arg(arguments, void*);
    va_end(arguments);
    if (!next) *(void**)&next = dlsym(RTLD_NEXT, "ioctl");
    return passed_on(next, file, request, argument);
}
