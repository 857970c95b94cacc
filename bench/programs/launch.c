/*
 * What a kernel launch costs the program that launches: `launch PTX CPU ROUNDS`.
 *
 * Each round has a batch of launches by every route to the driver's function: `itself` is the driver's own, the others
 * are what programs find. Prints lines of "MODE ROUTE NANOSECONDS", CPU time of this thread per call, one line a batch;
 * and first lines of "hooked ROUTE 0|1", whether that route leads to another function than the driver's own.
 * `idle` is a queue that was empty when the batch began and never fills; `busy` is back to back, where a launch may
 * wait for a kernel to end; `graph` is a CUDA graph of 16 kernels, launched into an idle queue.
 */
#define _GNU_SOURCE
#include <string.h>

#include "cuda.h"
#include "elf.h"

enum { IDLE = 500, BUSY = 2000, GRAPHS = 50, KERNELS = 16, ROUTES = 4, WARM_UP = 3 };

struct route {
    const char* name;
    struct cuda cuda;
};

struct mode {
    const char* name;
    int calls;
    void* what; /* a kernel, or an executable graph */
};

static void batch(const struct route* route, const struct mode* mode, void* stream, int quiet) {
    const struct cuda* cuda = &route->cuda;
    const int graph = !strcmp(mode->name, "graph");
    const double began = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < mode->calls; ++i) {
        const int code = graph ? cuda->cuGraphLaunch(mode->what, stream) : launch_empty(cuda, mode->what, stream);
        if (code) fail(mode->name, code);
    }
    const double took = now_ns(CLOCK_THREAD_CPUTIME_ID) - began;
    CHECK(cuda->cuStreamSynchronize(stream));
    if (!quiet) printf("%s %s %.2f\n", mode->name, route->name, took / mode->calls);
}

/* Each round begins with another route. */
static void measure(const struct route* routes, const struct mode* mode, void* stream, int rounds) {
    for (int round = -WARM_UP; round < rounds; ++round)
        for (int i = 0; i < ROUTES; ++i) batch(&routes[(round + WARM_UP + i) % ROUTES], mode, stream, round < 0);
}

static void* graph_of(const struct cuda* cuda, void* kernel, void* stream) {
    void *graph, *executable;
    CHECK(cuda->cuStreamBeginCapture(stream, CAPTURE_THREAD_LOCAL));
    for (int i = 0; i < KERNELS; ++i) CHECK(launch_empty(cuda, kernel, stream));
    CHECK(cuda->cuStreamEndCapture(stream, &graph));
    CHECK(cuda->cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
}

int main(int count, char** words) {
    if (count != 4) fail("usage: launch PTX CPU ROUNDS", 2);
    void *library = driver_library(), *stream;
    const int rounds = atoi(words[3]);
    const struct route routes[ROUTES] = {{"itself", by_symbol_table(library)},
                                         {"linked", by_dlsym(RTLD_DEFAULT)}, /* as the dynamic linker binds it */
                                         {"dlsym", by_dlsym(library)},
                                         {"cuGetProcAddress", by_proc_address(library)}};
    const struct cuda *itself = &routes[0].cuda, *cuda = &routes[2].cuda;
    for (const struct route* route = routes + 1; route < routes + ROUTES; ++route)
        printf("hooked %s %d\n", route->name,
               route->cuda.cuLaunchKernel != itself->cuLaunchKernel &&
                   (!itself->cuGraphLaunch || route->cuda.cuGraphLaunch != itself->cuGraphLaunch));
    pin(atoi(words[2]));
    enter(cuda);
    CHECK(cuda->cuStreamCreate(&stream, STREAM_NON_BLOCKING));
    void* kernel = load_kernel(cuda, words[1]);
    measure(routes, &(struct mode){"idle", IDLE, kernel}, stream, rounds);
    measure(routes, &(struct mode){"busy", BUSY, kernel}, stream, rounds);
    if (!itself->cuGraphLaunch || !itself->cuStreamBeginCapture || !itself->cuGraphInstantiateWithFlags) return 0;
    measure(routes, &(struct mode){"graph", GRAPHS, graph_of(cuda, kernel, stream)}, stream, rounds);
    return 0;
}
