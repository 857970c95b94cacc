/* Clients that share a GPU operation by operation: each act prints what a test compares. */
#include <stddef.h>
#include <sys/wait.h>

#include "clients.h"

static void with_buffer(CUdeviceptr state, CUstream stream) {
    struct {
        CUdeviceptr state;
        uint64_t count;
        uint32_t rounds;
    } packed = {state, kWords, 3};
    size_t size = offsetof(__typeof__(packed), rounds) + sizeof(packed.rounds); /* no more than it takes */
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CUlaunchConfig config = {.gridDimX = kWords / 256,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 256,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    MUST(cuLaunchKernelEx(&config, lcg, NULL, extra));
    memset(&packed, 0, sizeof(packed));
}

/* A pipeline on the default stream, two blocking ones and one that is not, with events, a graph and copies. */
static uint32_t pipeline(int seed) {
    CUstream blocking[2], loose;
    CUevent event;
    CUdeviceptr one, two;
    uint32_t *pinned, sum = 0;
    static _Thread_local uint32_t words[kWords];
    MUST(cuStreamCreate(&blocking[0], CU_STREAM_DEFAULT));
    MUST(cuStreamCreate(&blocking[1], CU_STREAM_DEFAULT));
    MUST(cuStreamCreate(&loose, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc(&one, kWords * 4));
    MUST(cuMemAlloc(&two, kWords * 4));
    MUST(cuMemHostAlloc((void**)&pinned, kWords * 4, 0));
    for (int round = 0; round < 8; ++round) {
        fills(one, (uint32_t)(seed + round), blocking[round % 2]);
        with_buffer(one, NULL);
        MUST(cuMemcpyDtoDAsync(two, one, kWords * 4, blocking[(round + 1) % 2]));
        MUST(cuEventRecord(event, blocking[(round + 1) % 2]));
        MUST(cuStreamWaitEvent(loose, event, 0));
        MUST(launch(lcg, two, kWords, 2, loose));
        MUST(cuMemcpyDtoHAsync(pinned, two, kWords * 4, loose));
        if (round % 3 == 0) MUST(cuMemsetD32Async(two, 7, kWords / 2, loose));
        MUST(cuEventRecord(event, loose));
        while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) usleep(100);
        MUST(cuEventQuery(event));
        for (int at = 0; at < kWords; ++at) sum = sum * 31 + pinned[at];
        MUST(cuMemcpyDtoH(words, two, sizeof(words)));
        for (int at = 0; at < kWords; ++at) sum = sum * 31 + words[at];
    }
    CUgraph graph;
    CUgraphExec executable;
    MUST(cuStreamBeginCapture(loose, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    fills(two, (uint32_t)seed, loose);
    MUST(launch(lcg, two, kWords, 5, loose));
    MUST(cuStreamEndCapture(loose, &graph));
    MUST(cuGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 4; ++round) MUST(cuGraphLaunch(executable, loose));
    MUST(cuMemcpyDtoHAsync(words, two, sizeof(words), loose)); /* pageable */
    MUST(cuGraphExecDestroy(executable));
    MUST(cuGraphDestroy(graph));
    MUST(cuStreamSynchronize(loose));
    for (int at = 0; at < kWords; ++at) sum = sum * 31 + words[at];
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(loose));
    MUST(cuStreamDestroy(blocking[0]));
    MUST(cuStreamDestroy(blocking[1]));
    MUST(cuCtxSynchronize());
    MUST(cuMemFree(one));
    MUST(cuMemFree(two));
    MUST(cuMemFreeHost(pinned));
    return sum;
}

static void* runs_pipeline(void* index) {
    is_client((int)(intptr_t)index);
    return (void*)(uintptr_t)pipeline(100 * (int)(intptr_t)index);
}

static void same(void) {
    pthread_t threads[3];
    for (int index = 0; index < 3; ++index)
        MUST(pthread_create(&threads[index], NULL, runs_pipeline, (void*)(intptr_t)index));
    for (int index = 0; index < 3; ++index) {
        void* sum;
        MUST(pthread_join(threads[index], &sum));
        printf("%d %08x\n", index, (uint32_t)(uintptr_t)sum);
    }
    if (!plain()) MUST(RL(rl_operations_stop)());
}

/* Of a busy client 0 and kernels of which nothing is known: they wait, and their events; then they run. */
static void waits(void) {
    other();
    const CUstream first = busy();
    fills(memory, 5, own);
    MUST(cuEventRecord(event, own));
    usleep(20000);
    const struct rl_operations_counters before = counted(1);
    printf("queued %d %d %d\n", (int)before.launched, cuEventQuery(event), cuStreamQuery(own));
    pthread_t opener;
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    MUST(cuEventSynchronize(event));
    MUST(pthread_join(opener, NULL));
    MUST(cuStreamSynchronize(own));
    const struct rl_operations_counters after = counted(1);
    printf("ran %d %d %d %d\n", (int)after.launched, (int)after.deferred, (int)after.opened,
           after.waited_ns >= 100000000);
    printf("word %u\n", word_of(memory));
    is_client(0);
    MUST(cuStreamSynchronize(first));
    printf("first %d %d\n", (int)counted(0).launched, (int)counted(0).requests);
}

/* Runs beside a busy client 0 or not: prints whether it did before that ended. */
static void beside(uint32_t class_of_first, uint32_t class_of_other, uint32_t sms, uint32_t most) {
    struct rl_admission rule = {
        .size = sizeof(rule), .beside = 1u << 5 | 1u << 7, .sms = most, .copies = 1, .gate_ns = -1};
    MUST(RL(rl_operations_admission)(&rule));
    MUST(RL(rl_operations_profile)("wait_flag_u32", class_of_first, 1, 1000));
    MUST(RL(rl_operations_profile)("fill_u32", class_of_other, sms, 1000));
    *flag_here = 0;
    const CUstream first = busy();
    fills(memory, 5, own);
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int attempt = 0; attempt < 100 && cuStreamQuery(own) != CUDA_SUCCESS; ++attempt) nanosleep(&pause, NULL);
    printf("%d\n", cuStreamQuery(own) == CUDA_SUCCESS);
    opens();
    MUST(cuStreamSynchronize(own));
    is_client(0);
    MUST(cuStreamSynchronize(first));
    is_client(1);
}

static void rule(void) {
    other();
    beside(RL_MEMORY, RL_COMPUTE, 4, 8);
    beside(RL_COMPUTE, RL_COMPUTE, 4, 8);
    beside(RL_MEMORY, RL_COMPUTE, 9, 8);
    beside(RL_COMPUTE, RL_MEMORY, 4, 8);
    beside(RL_UNKNOWN, RL_COMPUTE, 4, 8);
}

/* Copies and fills go beside it. */
static void copies(void) {
    uint32_t* pinned;
    other();
    MUST(cuMemHostAlloc((void**)&pinned, 64, 0));
    busy();
    MUST(cuMemsetD32Async(memory, 9, kWords, own));
    MUST(cuMemcpyDtoHAsync(pinned, memory, 4, own));
    MUST(cuStreamSynchronize(own));
    printf("copied %u\n", *pinned);
    opens();
}

/* Client 0 never ends: what waits goes without the rule. */
static void bound(void) {
    other();
    busy();
    fills(memory, 6, own);
    MUST(cuStreamSynchronize(own));
    printf("opened %d\n", (int)counted(1).opened);
    fills(memory, 7, own);
    MUST(cuStreamSynchronize(own));
    printf("opened %d\n", (int)counted(1).opened);
    opens();
    MUST(cuStreamSynchronize(own));
    printf("word %u\n", word_of(memory));
}

static void* leaves_queued(void* unused) {
    (void)unused;
    is_client(1);
    fills(memory, 8, own);
    MUST(cuEventRecord(event, own));
    return NULL;
}

/* A client's thread ends with work queued; another thread waits for its event, which was made by none of them. */
static void leaves(void) {
    pthread_t thread;
    other();
    const CUstream first = busy();
    MUST(pthread_create(&thread, NULL, leaves_queued, NULL));
    MUST(pthread_join(thread, NULL));
    is_client(-1);
    printf("queued %d\n", cuEventQuery(event));
    opens();
    MUST(cuEventSynchronize(event));
    printf("word %u\n", word_of(memory));
    MUST(cuStreamSynchronize(first));
}

/* Client 0 waits for what another has queued: it goes at once. */
static void inverts(void) {
    other();
    busy();
    fills(memory, 4, own);
    MUST(cuEventRecord(event, own));
    is_client(0);
    MUST(cuEventSynchronize(event));
    is_client(1);
    printf("opened %d\n", (int)counted(1).opened);
    opens();
    printf("word %u\n", word_of(memory));
}

static void ends(void) {
    other();
    busy();
    fills(memory, 4, own);
    printf("ends\n");
    fflush(stdout);
    opens();
    exit(0);
}

static void forks(void) {
    other();
    busy();
    fills(memory, 4, own);
    const pid_t child = fork();
    if (child == 0) _exit(RL(rl_operations_client)(0) == -2 && RL(rl_operations_stop)() == -2 ? 0 : 1);
    int status;
    waitpid(child, &status, 0);
    printf("child %d\n", status);
    opens();
    MUST(cuStreamSynchronize(own));
    printf("word %u\n", word_of(memory));
}

/* What takes away what is queued waits for it. */
static void takes(void) {
    CUmodule second;
    CUfunction again;
    static char image[1 << 20];
    other();
    FILE* file = fopen(getenv("KERNELS"), "rb");
    if (file == NULL || fread(image, 1, sizeof(image) - 1, file) == 0) must(1, "KERNELS");
    fclose(file);
    MUST(cuModuleLoadData(&second, image));
    MUST(cuModuleGetFunction(&again, second, "accumulate_lcg"));
    const CUstream first = busy();
    CUevent early;
    MUST(cuEventCreate(&early, CU_EVENT_DISABLE_TIMING));
    MUST(launch(again, memory, kWords, 1, own));
    MUST(cuEventRecord(early, own));
    pthread_t opener;
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    MUST(cuEventDestroy(early));
    MUST(cuModuleUnload(second));
    MUST(cuStreamSynchronize(own));
    MUST(pthread_join(opener, NULL));
    const uint32_t word = word_of(memory);
    MUST(cuMemFree(memory));
    MUST(cuStreamDestroy(own));
    printf("word %u\n", word);
    is_client(0);
    MUST(cuStreamSynchronize(first));
}

/* The log has all that was launched. */
static void log_of(void) {
    static struct rl_operation taken[64];
    other();
    MUST(RL(rl_operations_log)(1));
    is_client(0);
    fills(memory, 1, own);
    MUST(cuStreamSynchronize(own));
    is_client(1);
    fills(memory, 2, own);
    MUST(cuMemsetD32Async(memory, 3, 4, own));
    MUST(cuEventRecord(event, own));
    MUST(cuStreamSynchronize(own));
    int count = 0; /* until it is seen to have ended */
    for (int attempt = 0; attempt < 1000 && count == 0; ++attempt) {
        usleep(10000);
        count = RL(rl_operations_take)(taken, 64);
    }
    for (int at = 0; at < count; ++at) {
        const struct rl_operation* one = &taken[at];
        printf("%u %u %s %d\n", one->client, one->kind, one->name,
               one->called_ns <= one->launched_ns && one->done_ns >= one->launched_ns);
    }
}

/* Client 0 gives back the context that others hold, while another one's work is on the GPU. */
static void gives_back(void) {
    static struct rl_operation taken[64];
    CUcontext same;
    other();
    MUST(RL(rl_operations_log)(1));
    blocks(own);
    is_client(0);
    MUST(cuDevicePrimaryCtxRetain(&same, 0));
    MUST(cuDevicePrimaryCtxRelease(0));
    printf("running %d\n", cuStreamQuery(own));
    opens();
    MUST(cuStreamSynchronize(own));
    int count = 0; /* until it is seen to have ended */
    for (int attempt = 0; attempt < 1000 && count == 0; ++attempt) {
        usleep(10000);
        count = RL(rl_operations_take)(taken, 64);
    }
    for (int at = 0; at < count; ++at) printf("%s %d\n", taken[at].name, taken[at].done_ns >= taken[at].launched_ns);
    fills(memory, 9, own);
    MUST(cuStreamSynchronize(own));
    printf("word %u\n", word_of(memory));
    MUST(cuDevicePrimaryCtxRelease(0)); /* the last time */
    make_context();
    MUST(cuMemAlloc(&memory, kWords * 4));
    is_client(1);
    fills(memory, 10, NULL);
    MUST(cuStreamSynchronize(NULL));
    printf("word %u\n", word_of(memory));
}

/* One client of a page, as the environment says: busy until its input says a word, or works beside. */
static void page(const char* part) {
    MUST(cuMemAlloc(&memory, kWords * 4));
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    if (!strcmp(part, "first")) {
        blocks(own);
        puts("busy");
        fflush(stdout);
        getchar();
        opens();
        MUST(cuStreamSynchronize(own));
        puts("idle");
        fflush(stdout);
        getchar();
        return;
    }
    fills(memory, 5, own);
    usleep(20000);
    printf("%d\n", cuStreamQuery(own));
    fflush(stdout);
    MUST(cuStreamSynchronize(own));
    printf("word %u\n", word_of(memory));
}

/* One client of a page that works and rests, each for moments that are never the same: how often a bound was reached.
 */
static void bursts(const char* part) {
    const bool first = !strcmp(part, "first");
    uint32_t at = first ? 1 : 2;
    const struct rl_admission closed = {sizeof(closed), 0, 0, 0, -1, 0, 0};
    MUST(cuMemAlloc(&memory, kWords * 4));
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    MUST(RL(rl_operations_admission)(&closed));
    for (int round = 0; round < (first ? 100000 : 1000); ++round) {
        for (int i = 0; i < 4; ++i) fills(memory, 5, own);
        MUST(cuStreamSynchronize(own));
        at = at * 1664525 + 1013904223;
        usleep((at >> 16) % 3000);
    }
    printf("opened %d\n", (int)counted(1).opened);
}

/* Nanoseconds of a launch: as client 0, and as another that is queued. */
static void cost(void) {
    other();
    const int rounds = 2000;
    struct timespec began, ended;
    for (int client = -1; client < 2; ++client) {
        is_client(plain() ? 0 : client);
        if (client == 1) busy();
        clock_gettime(CLOCK_MONOTONIC, &began);
        for (int round = 0; round < rounds; ++round) {
            fills(memory, 1, own);
            if (client != 1 && round % 256 == 255) MUST(cuStreamSynchronize(own));
        }
        clock_gettime(CLOCK_MONOTONIC, &ended);
        printf("%d %.0f\n", client,
               ((double)(ended.tv_sec - began.tv_sec) * 1e9 + (double)(ended.tv_nsec - began.tv_nsec)) / rounds);
    }
    opens();
    MUST(cuStreamSynchronize(own));
}

int main(int count, char** words) {
    const char* act = count > 1 ? words[1] : "";
    if (!strcmp(act, "absent")) {
        printf("%d\n", RL(rl_operations_start)(2));
        return 0;
    }
    if (!strcmp(act, "asks_first")) {
        const struct rl_admission all = {sizeof(all), ~0u, ~0u, 1, -1, 0, 0};
        printf("%d\n", RL(rl_operations_admission)(&all));
        return 0;
    }
    if (!strcmp(act, "page") || !strcmp(act, "bursts")) setenv("PLAIN", "1", 1);
    prepare();
    if (!strcmp(act, "same")) same();
    if (!strcmp(act, "waits")) waits();
    if (!strcmp(act, "rule")) rule();
    if (!strcmp(act, "copies")) copies();
    if (!strcmp(act, "bound")) bound();
    if (!strcmp(act, "leaves")) leaves();
    if (!strcmp(act, "inverts")) inverts();
    if (!strcmp(act, "ends")) ends();
    if (!strcmp(act, "forks")) forks();
    if (!strcmp(act, "takes")) takes();
    if (!strcmp(act, "log")) log_of();
    if (!strcmp(act, "gives_back")) gives_back();
    if (!strcmp(act, "page")) page(words[2]);
    if (!strcmp(act, "bursts")) bursts(words[2]);
    if (!strcmp(act, "cost")) cost();
    return 0;
}
