/* Clients that share a GPU operation by operation, and do what is seldom done: each act prints what a test compares. */
#include <stdatomic.h>

#include "clients.h"
#include "faulting.h"

static CUdeviceptr second, third;

static void buffers(void) {
    other();
    MUST(cuMemAlloc(&second, kWords * 4));
    MUST(cuMemAlloc(&third, kWords * 4));
}

static CUgraph captured(uint32_t value) {
    CUgraph graph;
    MUST(cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_RELAXED));
    fills(memory, value, own);
    MUST(launch(lcg, memory, kWords, 2, own));
    MUST(cuStreamEndCapture(own, &graph));
    return graph;
}

/* Launches a graph while client 0 keeps the GPU busy, until a thread opens it a little later. The stream that is busy.
 */
static CUstream queued(CUgraphExec executable, pthread_t* opener) {
    const CUstream first = busy();
    MUST(pthread_create(opener, NULL, opens_later, NULL));
    MUST(cuGraphLaunch(executable, own));
    printf("queued %d\n", cuStreamQuery(own));
    return first;
}

/* A graph is changed, launched again and destroyed while its launches are queued. */
static void graph(void) {
    CUgraphExec executable;
    CUgraphExecUpdateResultInfo told;
    buffers();
    CUgraph before = captured(3), after = captured(4);
    MUST(cuGraphInstantiate(&executable, before, 0));
    pthread_t opener;
    const CUstream first = queued(executable, &opener);
    MUST(cuGraphDestroy(before));
    MUST(cuMemcpyDtoDAsync(second, memory, kWords * 4, own));
    MUST(cuGraphExecUpdate(executable, after, &told));
    MUST(cuGraphLaunch(executable, own));
    MUST(cuMemcpyDtoDAsync(third, memory, kWords * 4, own));
    MUST(cuGraphExecDestroy(executable));
    MUST(cuGraphDestroy(after));
    MUST(cuStreamSynchronize(own));
    MUST(pthread_join(opener, NULL));
    printf("words %u %u\n", word_of(second), word_of(third));
    is_client(0);
    MUST(cuStreamSynchronize(first));
}

static atomic_int launched, recorded;

static void launches_itself(void* unused) {
    (void)unused;
    uint64_t count = kWords;
    uint32_t value = 99;
    void* parameters[] = {&memory, &value, &count};
    launched = cuLaunchKernel(fill, kWords / 256, 1, 1, 256, 1, 1, 0, own, parameters, NULL);
    recorded = cuEventRecord(event, own);
}

/* A function of the host that a stream calls gives the driver more, which the driver may refuse. */
static void callback(void) {
    buffers();
    for (int client = 1; client >= 0; --client) {
        is_client(client);
        launched = recorded = -1;
        fills(memory, 5, own);
        MUST(cuLaunchHostFunc(own, launches_itself, NULL));
        MUST(cuStreamSynchronize(own));
        MUST(cuStreamSynchronize(own)); /* what it gave the stream itself */
        printf("%d %d %u\n", launched, recorded, word_of(memory));
    }
    const CUstream first = busy(); /* what it gives then has to wait */
    pthread_t opener;
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    launched = recorded = -1;
    MUST(cuLaunchHostFunc(own, launches_itself, NULL));
    while (recorded == -1) usleep(1000);
    MUST(cuEventSynchronize(event));
    MUST(pthread_join(opener, NULL));
    printf("%d %d %u\n", launched, recorded, word_of(memory));
    is_client(0);
    MUST(cuStreamSynchronize(first));
    if (!plain()) printf("opened %d %d\n", (int)counted(0).opened, (int)counted(1).opened);
}

/* A graph that was queued calls a function of the host that faults, for which there is a handler. */
static void fault(void) {
    CUgraph graph;
    CUgraphExec executable;
    buffers();
    MUST(cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(call_what_faults(own));
    MUST(cuStreamEndCapture(own, &graph));
    MUST(cuGraphInstantiate(&executable, graph, 0));
    pthread_t opener;
    const CUstream first = queued(executable, &opener);
    MUST(cuStreamSynchronize(own));
    MUST(pthread_join(opener, NULL));
    is_client(0);
    MUST(cuStreamSynchronize(first));
    printf("faults %d\n", faults);
}

/* Client 0 launches, and never waits for anything: the other one still has its turn. */
static void never(void) {
    const struct rl_admission closed = {sizeof(closed), 0, 0, 0, -1, 0, 0};
    CUstream first;
    buffers();
    MUST(RL(rl_operations_admission)(&closed));
    is_client(0);
    MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 200; ++round) {
        is_client(0);
        fills(second, 1, first);
        is_client(1);
        fills(memory, (uint32_t)round, own);
        if (round % 20 == 19) MUST(cuStreamSynchronize(own));
    }
    printf("word %u opened %d\n", word_of(memory), (int)counted(1).opened);
}

/* More than the queue has room for: who launches waits until some of it is gone. */
static void full(void) {
    buffers();
    const CUstream first = busy();
    pthread_t opener;
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    for (uint32_t round = 0; round < 12000; ++round) fills(memory, round, own);
    MUST(cuStreamSynchronize(own));
    MUST(pthread_join(opener, NULL));
    printf("word %u opened %d\n", word_of(memory), (int)counted(1).opened);
    is_client(0);
    MUST(cuStreamSynchronize(first));
}

/* Numbers of clients that there are not. */
static void more(void) {
    prepare();
    printf("%d %d %d\n", RL(rl_operations_client)(3), RL(rl_operations_client)(-2), RL(rl_operations_client)(16));
    struct rl_operations_counters counters;
    printf("%d %d\n", RL(rl_operations_counters)(3, &counters), RL(rl_operations_counters)(-1, &counters));
    MUST(RL(rl_operations_stop)());
    printf("%d %d\n", RL(rl_operations_start)(17), RL(rl_operations_start)(0));
}

/* A thread of no client gives a stream of its own a kernel, which is nothing to what clients have queued. */
static void beside(void) {
    CUstream nobodys;
    uint64_t count = kWords;
    uint32_t value = 3;
    void* parameters[] = {&second, &value, &count};
    is_client(-1);
    MUST(cuStreamCreate(&nobodys, CU_STREAM_NON_BLOCKING));
    const CUlaunchConfig config = {kWords / 256, 1, 1, 256, 1, 1, 0, nobodys, NULL, 0};
    MUST(cuLaunchKernelEx(&config, fill, parameters, NULL));
    is_client(1);
}

/* Another process is to wait for an event whose record is queued: it is with the driver before that process can know.
 */
static void shares(void) {
    CUevent shared;
    CUipcEventHandle handle;
    buffers();
    MUST(cuEventCreate(&shared, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    const CUstream first = busy();
    pthread_t opener;
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    fills(memory, 5, own);
    MUST(cuEventRecord(shared, own));
    printf("queued %d\n", cuEventQuery(shared));
    beside();
    printf("beside %d\n", (int)counted(1).launched);
    const CUresult answer = cuIpcGetEventHandle(&handle, shared);
    printf("shared %d launched %d\n", answer, (int)counted(1).launched);
    MUST(pthread_join(opener, NULL));
    is_client(0);
    MUST(cuStreamSynchronize(first));
    *flag_here = 0;
    is_client(0);
    blocks(first);
    is_client(1);
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    fills(memory, 6, own);
    MUST(cuEventRecord(shared, own)); /* again: the other process knows it already */
    printf("again %d\n", (int)counted(1).launched);
    MUST(pthread_join(opener, NULL));
    MUST(cuEventDestroy(shared));
}

static void says(const char* what) {
    puts(what);
    fflush(stdout);
    getchar();
}

/* What whoever looks from outside is told: of a queue while client 0 is busy, of what left it, and of nobody after. */
static void told(void) {
    buffers();
    MUST(RL(rl_operations_profile)("fill_u32", RL_MEMORY, 4, 1000000));
    const CUstream first = busy();
    for (int round = 0; round < 3; ++round) fills(memory, 5, own);
    says("queued");
    opens();
    MUST(cuStreamSynchronize(own));
    is_client(0);
    MUST(cuStreamSynchronize(first));
    says("ran");
    MUST(RL(rl_operations_stop)());
    says("stopped");
}

/* A client of a page that has work with a profile in flight until its input says a word, or asks beside what others
   have. */
static void page(const char* part) {
    const struct rl_admission rule = {sizeof(rule), ~0u, 10, 1, -1, 0, 0};
    MUST(RL(rl_operations_admission)(&rule));
    MUST(RL(rl_operations_profile)("wait_flag_u32", RL_MEMORY, 8, 1000));
    MUST(RL(rl_operations_profile)("fill_u32", RL_COMPUTE, 8, 1000));
    MUST(cuMemAlloc(&memory, kWords * 4));
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    if (strcmp(part, "asks")) {
        blocks(own);
        says("busy");
        opens();
        MUST(cuStreamSynchronize(own));
        return;
    }
    fills(memory, 5, own);
    usleep(50000);
    printf("%d\n", cuStreamQuery(own));
    fflush(stdout);
    MUST(cuStreamSynchronize(own));
    printf("word %u\n", word_of(memory));
}

int main(int count, char** words) {
    const char* act = count > 1 ? words[1] : "";
    if (!strcmp(act, "page")) setenv("PLAIN", "1", 1);
    if (!strcmp(act, "more")) {
        more();
        return 0;
    }
    prepare();
    if (!strcmp(act, "graph")) graph();
    if (!strcmp(act, "callback")) callback();
    if (!strcmp(act, "fault")) fault();
    if (!strcmp(act, "never")) never();
    if (!strcmp(act, "full")) full();
    if (!strcmp(act, "shares")) shares();
    if (!strcmp(act, "told")) told();
    if (!strcmp(act, "page")) page(words[2]);
    return 0;
}
