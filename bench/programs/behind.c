/*
 * Preloaded behind the library, for `start`: when it is set up the library is about to be, and each request to the
 * driver that the library passes on comes by here. Everything is told to the program, which exports the rest.
 */
#define _GNU_SOURCE
#include "door.h"

__attribute__((constructor)) static void set_up(void) { behind_ns = monotonic_ns(); }

static int came_by(door next, int file, unsigned long request, void* argument) {
    return passed_on(next, file, request, argument);
}
