/*
 * How long a process needs to its first context: `start SPAWNED`, when it was started (CLOCK_MONOTONIC, ns).
 *
 * Waits for the end of its standard input, so that many can begin together. Prints "MAIN LOADED CONTEXT CONSTRUCTOR
 * DOOR", milliseconds:
 *   MAIN         from SPAWNED to main;
 *   LOADED       to load the driver's library and find its functions;
 *   CONTEXT      from cuInit to the first context;
 * and, when behind.c is preloaded behind a library, what that library takes of them itself:
 *   CONSTRUCTOR  of MAIN, from behind.c's constructor to this program's: the library's runs between them;
 *   DOOR         of the rest, in requests to the driver: the driver's library finds this program's `ioctl` first, that
 *                calls the library's, and that behind.c's. Requests that the library adds count as its own time.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <unistd.h>

#include "cuda.h"
#include "door.h"

struct sum {
    _Atomic uint64_t requests, ns;
};

uint64_t behind_ns;

static uint64_t set_up_ns;
static struct sum before, behind;
static _Thread_local struct {
    int is_in_library;
    void* argument;
} passing;

__attribute__((constructor)) static void set_up(void) { set_up_ns = monotonic_ns(); }

static int timed(struct sum* sum, door next, int file, unsigned long request, void* argument) {
    const uint64_t began = monotonic_ns();
    const int result = next(file, request, argument);
    atomic_fetch_add(&sum->ns, monotonic_ns() - began);
    atomic_fetch_add(&sum->requests, 1);
    return result;
}

int passed_on(door next, int file, unsigned long request, void* argument) {
    if (!passing.is_in_library || passing.argument != argument) return next(file, request, argument);
    return timed(&behind, next, file, request, argument);
}

static int came_by(door next, int file, unsigned long request, void* argument) {
    passing.is_in_library = 1;
    passing.argument = argument;
    const int result = timed(&before, next, file, request, argument);
    passing.is_in_library = 0;
    return result;
}

/* The emulated GPU's ioctl. The library passes on to where the request came from, which is here. */
int runlist_emulated_ioctl(int file, unsigned long request, void* argument) {
    static const char kName[] = "runlist_emulated_ioctl";
    static door next, driver;
    if (!next) {
        *(void**)&driver = dlsym(driver_library(), kName);
        *(void**)&next = dlsym(RTLD_NEXT, kName);
    }
    if (passing.is_in_library) return passed_on(driver, file, request, argument);
    return came_by(next, file, request, argument);
}

int main(int count, char** words) {
    const uint64_t entered = monotonic_ns();
    char byte;
    if (count != 2) fail("usage: start SPAWNED", 2);
    while (read(0, &byte, 1) > 0) continue;
    const uint64_t loading = monotonic_ns();
    const struct cuda cuda = by_dlsym(driver_library());
    const uint64_t began = monotonic_ns();
    enter(&cuda);
    const uint64_t done = monotonic_ns();
    /* Read in this order: a request of another thread that is on its way is in neither, or was behind. */
    const uint64_t requests = before.requests, before_ns = before.ns, passed = behind.requests;
    if (behind_ns && !dlsym(RTLD_DEFAULT, "rl_segment_begin")) fail("the library is not there", 0);
    if (behind_ns && !requests) fail("requests to the driver do not come by", 0);
    if (behind_ns && passed < requests) fail("requests that the library did not pass on", (int)(requests - passed));
    printf("%.4f %.4f %.4f %.4f %.4f\n", (entered - strtoull(words[1], NULL, 10)) / 1e6, (began - loading) / 1e6,
           (done - began) / 1e6, behind_ns ? (set_up_ns - behind_ns) / 1e6 : 0,
           behind_ns ? ((double)before_ns - behind.ns) / 1e6 : 0);
    return 0;
}
