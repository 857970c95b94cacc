/*
 * What scheduling operations costs who launches them: `operations PTX CPU ROUNDS LARGE SMALL`.
 *
 * Clients in turn, each with a stream of its own: `none` (a thread that is no client), `hp` (client 0), `be` (client
 * 1), `ahead` (client 1 under a rule that bounds what it may have in flight while client 0 is idle). Two routes:
 * `itself` is the driver's own function, `linked` what a program finds, which the library stands before. Prints lines
 * of words and a number:
 *
 * launch CLIENT ROUTE: CPU ns of this thread a launch, one line a batch, of kernels that have nothing to do. Nobody
 * else uses the GPU.
 *
 * queued be, queued p99: ns of one launch that goes into the queue while client 0 keeps the GPU busy; the median and
 * the 99th percentile of a batch. deferred: the part of that batch that had to wait, by the library's own word; if it
 * is not 1 the two say nothing. drained: ns from client 0's end until that batch has ended, by launch.
 *
 * large CLIENT ROUTE, small CLIENT ROUTE: ns until LARGE kernels of about a millisecond have ended, or SMALL ones that
 * have nothing to do. right CLIENT: 1 where the large ones have run as often as they were launched.
 */
#define _GNU_SOURCE
#include <string.h>

#include "cuda.h"
#include "elf.h"

enum { CLIENTS = 4, TURNS = 2 * CLIENTS };
enum { IDLE = 500, QUEUED = 200, BLOCKS = 132, THREADS = 256, WARM_UP = 2, LARGE_NS = 1000000 };

/* As in runlist_operations.h, which programs need not be built with. */
struct admission {
    uint32_t size, beside, sms, copies;
    int64_t gate_ns, ahead_ns, rest_ns;
};
struct counters {
    uint64_t launched, deferred, flushed, opened, waited_ns, requests, latency_ns;
};

static struct {
    int (*start)(int);
    int (*client)(int);
    int (*admission)(const struct admission*);
    int (*counters)(int, struct counters*);
    int (*stop)(void);
} operations;

struct work {
    const struct cuda* itself;
    const struct cuda* linked;
    void *empty, *accumulate, *wait;
    uint32_t large_rounds;
};

struct client {
    const char* name;
    int index;
    const struct admission* rule;
    void* stream;
    address state;
    uint64_t rounds; /* that its kernels have had */
};

static void find_operations(void) {
#define OPERATION(name)                                                      \
    *(void**)&operations.name = dlsym(RTLD_DEFAULT, "rl_operations_" #name); \
    if (!operations.name) fail("the library has no rl_operations_" #name, 0)
    OPERATION(start);
    OPERATION(client);
    OPERATION(admission);
    OPERATION(counters);
    OPERATION(stop);
#undef OPERATION
}

#define SAYS(call)                         \
    do {                                   \
        const int said_ = (call);          \
        if (said_ < 0) fail(#call, said_); \
    } while (0)

static void become(const struct client* client) {
    SAYS(operations.client(client->index));
    SAYS(operations.admission(client->rule));
}

static void accumulate(const struct work* work, const struct cuda* cuda, struct client* client, uint32_t rounds) {
    uint64_t count = (uint64_t)BLOCKS * THREADS;
    void* parameters[] = {&client->state, &count, &rounds};
    CHECK(cuda->cuLaunchKernel(work->accumulate, BLOCKS, 1, 1, THREADS, 1, 1, 0, client->stream, parameters, NULL));
    client->rounds += rounds;
}

static void launches(const struct work* work, struct client* client, const char* route, int quiet) {
    const struct cuda* cuda = strcmp(route, "itself") ? work->linked : work->itself;
    become(client);
    CHECK(launch_empty(cuda, work->empty, client->stream));
    CHECK(cuda->cuStreamSynchronize(client->stream));
    const double began = now_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < IDLE; ++i) CHECK(launch_empty(cuda, work->empty, client->stream));
    const double took = now_ns(CLOCK_THREAD_CPUTIME_ID) - began;
    CHECK(cuda->cuStreamSynchronize(client->stream));
    if (!quiet) printf("launch %s %s %.2f\n", client->name, route, took / IDLE);
}

static void many(const struct work* work, struct client* client, const char* route, const char* what, int count) {
    const struct cuda* cuda = strcmp(route, "itself") ? work->linked : work->itself;
    const int large = !strcmp(what, "large");
    become(client);
    CHECK(cuda->cuStreamSynchronize(client->stream));
    const double began = now_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < count; ++i) {
        if (large)
            accumulate(work, cuda, client, work->large_rounds);
        else
            CHECK(launch_empty(cuda, work->empty, client->stream));
    }
    CHECK(cuda->cuStreamSynchronize(client->stream));
    printf("%s %s %s %.0f\n", what, client->name, route, now_ns(CLOCK_MONOTONIC) - began);
}

static int ascending(const void* one, const void* other) {
    const double difference = *(const double*)one - *(const double*)other;
    return (difference > 0) - (difference < 0);
}

/* Client 0 holds the GPU with a kernel that waits for a word of ours; meanwhile nothing of the other may run. */
static void queued(const struct work* work, struct client* urgent, struct client* other, volatile uint32_t* flag,
                   address flag_at, uint32_t ticket, int quiet) {
    static double took[QUEUED];
    struct counters before, after;
    const struct cuda* cuda = work->linked;
    become(urgent);
    void* parameters[] = {&flag_at, &ticket};
    CHECK(cuda->cuLaunchKernel(work->wait, 1, 1, 1, 1, 1, 1, 0, urgent->stream, parameters, NULL));
    become(other);
    SAYS(operations.counters(other->index, &before));
    for (int i = 0; i < QUEUED; ++i) {
        const double began = now_ns(CLOCK_MONOTONIC);
        CHECK(launch_empty(cuda, work->empty, other->stream));
        took[i] = now_ns(CLOCK_MONOTONIC) - began;
    }
    *flag = ticket;
    const double released = now_ns(CLOCK_MONOTONIC);
    CHECK(cuda->cuStreamSynchronize(other->stream));
    const double drained = now_ns(CLOCK_MONOTONIC) - released;
    SAYS(operations.counters(other->index, &after));
    become(urgent);
    CHECK(cuda->cuStreamSynchronize(urgent->stream));
    if (quiet) return;
    qsort(took, QUEUED, sizeof *took, ascending);
    printf("queued %s %.2f\nqueued p99 %.2f\n", other->name, took[QUEUED / 2], took[QUEUED * 99 / 100]);
    printf("drained %.2f\ndeferred %.3f\n", drained / QUEUED, (double)(after.deferred - before.deferred) / QUEUED);
}

/* Rounds with which one kernel takes about a millisecond. */
static uint32_t rounds_of_a_large_one(struct work* work, struct client* client) {
    for (uint32_t rounds = 1000;; rounds *= 2) {
        const double began = now_ns(CLOCK_MONOTONIC);
        accumulate(work, work->linked, client, rounds);
        CHECK(work->linked->cuStreamSynchronize(client->stream));
        const double took = now_ns(CLOCK_MONOTONIC) - began;
        if (took >= LARGE_NS || rounds > (1u << 28)) return (uint32_t)(rounds * (LARGE_NS / took)) + 1;
    }
}

static int right(const struct cuda* cuda, const struct client* client) {
    enum { COUNT = BLOCKS * THREADS };
    static uint32_t state[COUNT];
    CHECK(cuda->cuMemcpyDtoH(state, client->state, sizeof state));
    /* x -> a x + c, so often as rounds are: by squaring */
    uint32_t factor = 1, sum = 0, square = 1664525u, added = 1013904223u;
    for (uint64_t left = client->rounds; left; left >>= 1) {
        if (left & 1) {
            factor *= square;
            sum = sum * square + added;
        }
        added += added * square;
        square *= square;
    }
    for (uint32_t i = 0; i < COUNT; ++i)
        if (state[i] != sum) return 0; /* it began at 0 */
    return 1;
}

int main(int count, char** words) {
    if (count != 6) fail("usage: operations PTX CPU ROUNDS LARGE SMALL", 2);
    void* library = driver_library();
    const int rounds = atoi(words[3]), large = atoi(words[4]), small = atoi(words[5]);
    const struct cuda itself = by_symbol_table(library), linked = by_dlsym(library);
    if (itself.cuLaunchKernel == linked.cuLaunchKernel) fail("the library does not stand before the driver", 0);
    find_operations();
    enter(&linked);
    SAYS(operations.start(2));
    pin(atoi(words[2])); /* what the library has started by now may run elsewhere */
    struct work work = {.itself = &itself, .linked = &linked};
    void* module = load_kernels(&linked, words[1]);
    work.empty = kernel_of(&linked, module, "fill_u32");
    work.accumulate = kernel_of(&linked, module, "accumulate_lcg");
    work.wait = kernel_of(&linked, module, "wait_flag_u32");
    const struct admission exclusive = {.size = sizeof exclusive, .gate_ns = -1};
    const struct admission bounded = {
        .size = sizeof bounded, .gate_ns = -1, .ahead_ns = LARGE_NS, .rest_ns = LARGE_NS / 10};
    struct client clients[CLIENTS] = {{.name = "none", .index = -1, .rule = &exclusive},
                                      {.name = "hp", .index = 0, .rule = &exclusive},
                                      {.name = "be", .index = 1, .rule = &exclusive},
                                      {.name = "ahead", .index = 1, .rule = &bounded}};
    for (int i = 0; i < CLIENTS; ++i) {
        become(&clients[i]);
        CHECK(linked.cuStreamCreate(&clients[i].stream, STREAM_NON_BLOCKING));
        CHECK(linked.cuMemAlloc(&clients[i].state, sizeof(uint32_t) * BLOCKS * THREADS));
        CHECK(linked.cuMemsetD8(clients[i].state, 0, sizeof(uint32_t) * BLOCKS * THREADS));
    }
    uint32_t* flag;
    address flag_at;
    CHECK(linked.cuMemHostAlloc((void**)&flag, sizeof *flag, MEMORY_MAPPED));
    CHECK(linked.cuMemHostGetDevicePointer(&flag_at, flag, 0));
    *flag = 0;
    become(&clients[1]);
    work.large_rounds = rounds_of_a_large_one(&work, &clients[1]);
    static const char* const routes[] = {"itself", "linked"};
    for (int round = -WARM_UP; round < rounds; ++round) {
        for (int i = 0; i < TURNS; ++i) {
            const int turn = (round + WARM_UP + i) % TURNS;
            launches(&work, &clients[turn / 2], routes[turn % 2], round < 0);
        }
        queued(&work, &clients[1], &clients[2], flag, flag_at, (uint32_t)(round + WARM_UP + 1), round < 0);
    }
    const int repeats = rounds < 5 ? rounds : 5;
    for (int round = 0; round < repeats; ++round)
        for (int i = 0; i < TURNS; ++i) {
            const int turn = (round + i) % TURNS;
            if (large) many(&work, &clients[turn / 2], routes[turn % 2], "large", large);
            if (small) many(&work, &clients[turn / 2], routes[turn % 2], "small", small);
        }
    for (int i = 0; i < CLIENTS; ++i) printf("right %s %d\n", clients[i].name, right(&linked, &clients[i]));
    SAYS(operations.client(-1));
    SAYS(operations.stop());
    return 0;
}
