/*
 * What calls of a driver cost that does nothing: `hooks CPU ROUNDS`, beside nothing.so.
 *
 * Each round has a batch of every call by each of two routes: `itself` is the driver's own function, `dlsym` what a
 * program finds. Prints lines of "CALL ROUTE NANOSECONDS", CPU time of this thread per call, one line a batch; and first
 * "hooked 0|1", whether the two are different functions.
 */
#define _GNU_SOURCE
#include <string.h>

#include "cuda.h"
#include "elf.h"

enum { CALLS = 20000, ROUTES = 2, KINDS = 4, WARM_UP = 3 };

struct route {
    const char* name;
    struct cuda cuda;
};

static const char* const kKinds[KINDS] = {"launch", "graph", "allocation", "asynchronous"};

static void call(const struct cuda* cuda, int kind) {
    address memory = 0;
    switch (kind) {
        case 0:
            cuda->cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
            break;
        case 1:
            cuda->cuGraphLaunch(NULL, NULL);
            break;
        case 2:
            cuda->cuMemAlloc(&memory, 1);
            cuda->cuMemFree(memory);
            break;
        default:
            cuda->cuMemAllocAsync(&memory, 1, NULL);
            cuda->cuMemFreeAsync(memory, NULL);
    }
}

static void batch(const struct route* route, int kind, int quiet) {
    const double began = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < CALLS; ++i) call(&route->cuda, kind);
    const double took = now_ns(CLOCK_THREAD_CPUTIME_ID) - began;
    if (!quiet) printf("%s %s %.3f\n", kKinds[kind], route->name, took / CALLS);
}

int main(int count, char** words) {
    if (count != 3) fail("usage: hooks CPU ROUNDS", 2);
    char path[4096];
    snprintf(path, sizeof path, "%.*s/nothing.so", (int)(strrchr(words[0], '/') - words[0]), words[0]);
    void* library = dlopen(path, RTLD_NOW);
    if (!library) fail(dlerror(), 0);
    struct route routes[ROUTES] = {{"itself", {0}}, {"dlsym", by_dlsym(library)}};
#define FUNCTION(name, symbol, version, parameters) *(void**)&routes[0].cuda.name = own_symbol(library, #symbol);
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    printf("hooked %d\n", routes[0].cuda.cuLaunchKernel != routes[1].cuda.cuLaunchKernel);
    pin(atoi(words[1]));
    const int rounds = atoi(words[2]);
    for (int round = -WARM_UP; round < rounds; ++round)
        for (int kind = 0; kind < KINDS; ++kind)
            for (int i = 0; i < ROUTES; ++i) batch(&routes[(round + WARM_UP + i) % ROUTES], kind, round < 0);
    return 0;
}
