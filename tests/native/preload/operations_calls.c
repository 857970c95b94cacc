/* Clients that share a GPU operation by operation, and calls that mean something to what others have queued, or to a
   whole context: each act prints what a test compares. */
#include <sys/wait.h>

#include "busy.h"

enum { kMuch = 100 << 10 }; /* bytes of shared memory: more than a block has unless its function says so */

static CUresult fills_with_much(uint32_t value, CUstream stream) {
    uint64_t count = kWords;
    void* parameters[] = {&memory, &value, &count};
    return cuLaunchKernel(fill, kWords / 256, 1, 1, 256, 1, 1, kMuch, stream, parameters, NULL);
}

/* A launch is made with what its function was set to then, whoever sets it to something else meanwhile. */
static void attributes(void) {
    buffers();
    MUST(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kMuch));
    const CUstream first = busy_for_a_while();
    MUST(fills_with_much(5, own));
    printf("queued %d\n", cuStreamQuery(own));
    is_client(2);
    MUST(cuFuncSetAttribute(fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 0));
    is_client(1);
    printf("ended %d\n", cuStreamSynchronize(own));
    idle_again(first);
    const CUresult refused = fills_with_much(6, own); /* or later, where it is queued */
    printf("refused %d\n", refused != CUDA_SUCCESS ? refused : cuStreamSynchronize(own));
    printf("word %u\n", word_of(memory));
}

/* What a client has queued is with the driver when another one, or that client, has changed what it depends on. */
static void changes(void) {
    buffers();
    for (int what = 0; what < 4; ++what) {
        const CUstream first = busy_for_a_while();
        fills(memory, 5, own);
        const int before = (int)counted(1).launched;
        if (what < 3) is_client(what % 2 == 0 ? 0 : 2);
        if (what == 0) MUST(cuFuncSetCacheConfig(fill, CU_FUNC_CACHE_PREFER_L1));
        if (what == 1) MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
        if (what == 2) MUST(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20));
        CUgraphicsResource none = NULL; /* what a stream was given uses them until they are given back */
        if (what == 3 && cuGraphicsUnmapResources(0, &none, own) != CUDA_ERROR_INVALID_VALUE) puts("taken");
        printf("%d\n", (int)counted(1).launched - before);
        is_client(1);
        MUST(cuStreamSynchronize(own));
        idle_again(first);
    }
}

/* A context waits for an event that another client records, and an event is recorded of all that a context has. */
static void contexts(void) {
    CUstream theirs;
    CUevent all;
    buffers();
    MUST(cuEventCreate(&all, CU_EVENT_DISABLE_TIMING));
    const CUstream first = busy_for_a_while();
    fills(memory, 5, own);
    MUST(cuEventRecord(event, own));
    is_client(2);
    MUST(cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING));
    MUST(cuCtxWaitEvent(context, event));
    MUST(cuMemcpyDtoDAsync(second, memory, kWords * 4, theirs));
    MUST(cuStreamSynchronize(theirs));
    printf("waited %u\n", word_of(second));
    is_client(1);
    idle_again(first);

    const CUstream again = busy_for_a_while();
    fills(memory, 6, own);
    is_client(2);
    MUST(cuCtxRecordEvent(context, all));
    MUST(cuEventSynchronize(all));
    uint32_t word;
    MUST(cuMemcpyDtoH(&word, memory, sizeof(word)));
    printf("recorded %u\n", word);
    is_client(1);
    idle_again(again);
}

static uint32_t policy_of(CUstream stream) {
    CUstreamAttrValue value = {0};
    MUST(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    return (uint32_t)value.syncPolicy;
}

static void set_policy(CUstream stream, CUsynchronizationPolicy policy) {
    CUstreamAttrValue value = {0};
    value.syncPolicy = policy;
    MUST(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
}

/* What streams were set to is copied from one to another, and asked for, the default stream's as well. */
static void streams(void) {
    CUstream from;
    buffers();
    MUST(cuStreamCreate(&from, CU_STREAM_NON_BLOCKING));
    set_policy(from, CU_SYNC_POLICY_YIELD);
    MUST(cuStreamCopyAttributes(own, from));
    printf("%u %u\n", policy_of(own), policy_of(from));
    set_policy(NULL, CU_SYNC_POLICY_SPIN);
    printf("%u\n", policy_of(NULL));
    MUST(cuStreamCopyAttributes(NULL, from));
    MUST(cuStreamCopyAttributes(from, own));
    printf("%u %u\n", policy_of(NULL), policy_of(from));
}

/* -- the library's own functions, in any order */

static uint32_t luck(uint32_t* state) { return *state = *state * 1664525u + 1013904223u, *state >> 16; }

/* Who gives something and waits for it as somebody else waits for nothing: it stays who it is meanwhile. */
static void calls_something(uint32_t* state, bool stays) {
    struct rl_admission rule = {
        sizeof(rule), luck(state) & 0x1FF, luck(state), luck(state) & 1, (int32_t)luck(state), 0, 0};
    struct rl_operations_counters counters;
    struct rl_operation taken[8];
    uint64_t latencies[8];
    switch (luck(state) % (stays ? 8 : 12)) {
        case 0:
            RL(orion_start_scheduler)((int)(luck(state) % 20) - 1);
            break;
        case 1:
            RL(orion_stop_scheduler)();
            break;
        case 2:
            RL(rl_operations_admission)(&rule);
            break;
        case 3:
            RL(rl_operations_profile)("fill_u32", luck(state) % 4, luck(state) % 200, luck(state));
            break;
        case 4:
            RL(rl_operations_counters)((int)(luck(state) % 20) - 1, &counters);
            break;
        case 5:
            RL(rl_operations_latencies)(latencies, 8);
            break;
        case 6:
            RL(rl_operations_log)((int)(luck(state) & 1));
            break;
        case 7:
            RL(rl_operations_take)(taken, 8);
            break;
        default:
            RL(rl_operations_client)((int)(luck(state) % 6) - 1);
    }
}

static void* calls_anything(void* seed) {
    uint32_t state = (uint32_t)(uintptr_t)seed;
    CUdeviceptr mine;
    CUstream stream;
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc(&mine, kWords * 4));
    for (uint32_t turn = 0; turn < 60; ++turn) {
        calls_something(&state, false);
        MUST(cuStreamCreate(&stream, turn % 2 != 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
        fills(mine, turn, turn % 3 == 0 ? NULL : stream);
        calls_something(&state, true);
        MUST(cuStreamSynchronize(turn % 3 == 0 ? NULL : stream));
        if (word_of(mine) != turn) must(1, "word");
        MUST(cuStreamDestroy(stream));
    }
    return NULL;
}

/* A child of fork has no scheduler, and may have one of its own, with nothing to schedule. */
static void forks(void) {
    const pid_t one = fork();
    if (one == 0) {
        uint32_t state = 7;
        RL(orion_set_client_idx)(1);
        RL(orion_stop_scheduler)();
        int right = RL(rl_operations_client)(0) < 0 && RL(rl_operations_start)(2) == 0 &&
                    RL(rl_operations_client)(1) == 0 && RL(rl_operations_start)(2) < 0 && RL(rl_operations_stop)() == 0;
        for (int turn = 0; turn < 50; ++turn) calls_something(&state, false);
        _Exit(right ? 0 : 3);
    }
    int status;
    must(waitpid(one, &status, 0) != one || status != 0, "child");
}

static void anyhow(void) {
    pthread_t threads[4];
    make_context();
    for (int index = 0; index < 4; ++index)
        MUST(pthread_create(&threads[index], NULL, calls_anything, (void*)(intptr_t)(index + 1)));
    for (int turn = 0; turn < 3; ++turn) forks();
    for (int index = 0; index < 4; ++index) MUST(pthread_join(threads[index], NULL));
    RL(rl_operations_stop)();
    MUST(RL(rl_operations_start)(2));
    MUST(RL(rl_operations_stop)());
    puts("right");
}

/* By the names of earlier schedulers: there is no client before there is a scheduler, nor a number that is none. */
static void early(void) {
    make_context();
    RL(orion_set_client_idx)(1);
    RL(orion_set_client_idx)(1);
    RL(orion_stop_scheduler)();
    printf("%d\n", RL(orion_start_scheduler)(2));
    printf("%d\n", RL(orion_start_scheduler)(2));
    RL(orion_set_client_idx)(2);
    RL(orion_set_client_idx)(1);
    RL(orion_stop_scheduler)();
    RL(orion_stop_scheduler)();
}

/* What a thread gave its default stream before it was a client, it still waits for when it is. */
static void before(void) {
    make_context();
    blocks(NULL);
    MUST(RL(rl_operations_start)(2));
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    MUST(RL(rl_operations_client)(1));
    MUST(cuStreamSynchronize(NULL));
    printf("started %u\n", *(volatile uint32_t*)flag_here);
    MUST(pthread_join(opener, NULL));
    *flag_here = 0;
    MUST(RL(rl_operations_client)(-1));
    blocks(NULL);
    MUST(RL(rl_operations_client)(1));
    printf("asked %d\n", cuStreamQuery(NULL));
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    MUST(cuStreamSynchronize(NULL));
    printf("became %u\n", *(volatile uint32_t*)flag_here);
    MUST(pthread_join(opener, NULL));
}

/* Graphs that record an event, and wait for one. */
static CUgraphExec graph_of(CUstream stream, bool records, CUdeviceptr to, CUdeviceptr from) {
    CUgraph graph;
    CUgraphExec executable;
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (!records) MUST(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
    MUST(cuMemcpyDtoDAsync(to, from, kWords * 4, stream));
    if (records) MUST(cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_EXTERNAL));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiate(&executable, graph, 0));
    MUST(cuGraphDestroy(graph));
    return executable;
}

/* What a graph records is waited for, and what it waits for was recorded, although both wait in queues. */
static void graphs(void) {
    CUdeviceptr third;
    CUstream theirs;
    buffers();
    MUST(cuMemAlloc(&third, kWords * 4));
    MUST(cuMemsetD32(third, 1, kWords));
    MUST(cuEventRecord(event, own)); /* there was something before */
    MUST(cuStreamSynchronize(own));
    const CUgraphExec records = graph_of(own, true, second, memory);
    const CUstream first = busy_for_a_while();
    fills(memory, 5, own);
    MUST(cuGraphLaunch(records, own));
    is_client(2);
    MUST(cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamWaitEvent(theirs, event, 0));
    MUST(cuMemcpyDtoDAsync(third, second, kWords * 4, theirs));
    MUST(cuStreamSynchronize(theirs));
    printf("recorded %u\n", word_of(third));
    const CUgraphExec waits = graph_of(theirs, false, third, memory);
    is_client(1);
    idle_again(first);

    const CUstream again = busy_for_a_while();
    fills(memory, 6, own);
    MUST(cuEventRecord(event, own));
    is_client(0);
    MUST(cuGraphLaunch(waits, theirs));
    MUST(cuStreamSynchronize(theirs));
    printf("waited %u\n", word_of(third));
    is_client(1);
    idle_again(again);
}

/* A graph of client 0, and then a launch of its, records an event whose record by another client is still queued: the
   event is of what was given last. */
static void records(bool by_graph) {
    CUstream theirs;
    buffers();
    MUST(cuStreamCreate(&theirs, CU_STREAM_NON_BLOCKING));
    CUgraphExec graph = NULL;
    if (by_graph) graph = graph_of(own, true, second, second);
    uint32_t* first_here = flag_here;
    const CUstream first = busy();
    fills(memory, 5, own);
    MUST(cuEventRecord(event, own));
    is_client(0);
    ++flag_here;
    flag += sizeof(*flag_here);
    blocks(theirs);
    if (by_graph) {
        MUST(cuGraphLaunch(graph, theirs));
    } else {
        uint32_t value = 6;
        uint64_t count = kWords;
        void* parameters[] = {&second, &value, &count};
        CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT};
        attribute.value.programmaticEvent.event = event;
        const CUlaunchConfig config = {.gridDimX = kWords / 256,
                                       .gridDimY = 1,
                                       .gridDimZ = 1,
                                       .blockDimX = 256,
                                       .blockDimY = 1,
                                       .blockDimZ = 1,
                                       .hStream = theirs,
                                       .attrs = &attribute,
                                       .numAttrs = 1};
        MUST(cuLaunchKernelEx(&config, fill, parameters, NULL));
    }
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    MUST(cuEventSynchronize(event));
    printf("last %u\n", *(volatile uint32_t*)flag_here);
    *(volatile uint32_t*)first_here = 1;
    idle_again(first);
}

/* Two threads are one client, whose default stream has work that a third gave: both wait for it. */
static void* waits_as_well(void* unused) {
    (void)unused;
    is_client(1);
    MUST(cuStreamSynchronize(NULL));
    return NULL;
}

static void twice(void) {
    pthread_t thread;
    make_context();
    if (!plain()) MUST(RL(rl_operations_start)(2));
    blocks(NULL);
    MUST(pthread_create(&thread, NULL, waits_as_well, NULL));
    usleep(50000);
    is_client(1);
    printf("%d\n", cuStreamQuery(NULL));
    opens();
    MUST(pthread_join(thread, NULL));
}

/* -- events that two processes see */

struct shared {
    CUipcMemHandle memory;
    CUipcEventHandle event;
};

static void all_of(ssize_t moved, size_t bytes) { must(moved != (ssize_t)bytes, "pipe"); }

/* The other process. It tells what it reads behind the event, and then records the event itself. */
static void child(void) {
    struct shared got;
    char word;
    buffers();
    const CUstream first = busy_for_a_while();
    all_of(read(0, &got, sizeof(got)), sizeof(got));
    CUdeviceptr theirs;
    CUevent both;
    MUST(cuIpcOpenMemHandle(&theirs, got.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    MUST(cuIpcOpenEventHandle(&both, got.event));
    for (int turn = 0; turn < 2; ++turn) {
        MUST(cuStreamWaitEvent(own, both, 0));
        MUST(cuMemcpyDtoDAsync(second, theirs, kWords * 4, own));
        MUST(cuStreamSynchronize(own));
        const uint32_t there = word_of(second);
        all_of(write(1, &there, sizeof(there)), sizeof(there));
        all_of(read(0, &word, 1), 1);
    }
    idle_again(first);
    const CUstream again = busy_for_a_while();
    fills(theirs, 9, own);
    MUST(cuEventRecord(both, own));
    all_of(write(1, &word, 1), 1);
    all_of(read(0, &word, 1), 1);
    idle_again(again);
    MUST(cuEventDestroy(both));
}

/* What is queued when an event is recorded that another process may see is done before that one goes on. `early`: it
   may before there are clients. */
static void processes(bool early) {
    int to[2], from[2];
    must(pipe(to) | pipe(from), "pipe");
    const pid_t other_one = fork(); /* before there is a context, which a child has not */
    if (other_one == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        execl("/proc/self/exe", "operations-calls", "child", NULL);
        _Exit(8);
    }
    struct shared given_away;
    CUevent both;
    uint32_t there;
    char word = 0;
    make_context();
    MUST(cuEventCreate(&both, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    if (early) MUST(cuIpcGetEventHandle(&given_away.event, both));
    if (!plain()) MUST(RL(rl_operations_start)(3));
    buffers();
    const CUstream first = busy_for_a_while();
    fills(memory, 5, own);
    MUST(cuEventRecord(both, own));
    MUST(cuIpcGetMemHandle(&given_away.memory, memory));
    if (!early) MUST(cuIpcGetEventHandle(&given_away.event, both));
    all_of(write(to[1], &given_away, sizeof(given_away)), sizeof(given_away));
    all_of(read(from[0], &there, sizeof(there)), sizeof(there));
    printf("told %u\n", there);
    idle_again(first);
    const CUstream again = busy_for_a_while();
    fills(memory, 6, own);
    MUST(cuEventRecord(both, own));
    all_of(write(to[1], &word, 1), 1);
    all_of(read(from[0], &there, sizeof(there)), sizeof(there));
    printf("told %u\n", there);
    idle_again(again);
    all_of(write(to[1], &word, 1), 1);
    all_of(read(from[0], &word, 1), 1);
    MUST(cuEventSynchronize(both));
    printf("read %u\n", word_of(memory));
    all_of(write(to[1], &word, 1), 1);
    int status;
    must(waitpid(other_one, &status, 0) != other_one || status != 0, "child");
    MUST(cuEventDestroy(both));
}

int main(int count, char** words) {
    const char* act = count > 1 ? words[1] : "";
    if (!strcmp(act, "processes") || !strcmp(act, "early processes")) {
        processes(act[0] == 'e');
        return 0;
    }
    if (!strcmp(act, "twice")) {
        twice();
        return 0;
    }
    if (!strcmp(act, "early")) {
        early();
        return 0;
    }
    if (!strcmp(act, "before")) {
        before();
        return 0;
    }
    if (!strcmp(act, "anyhow")) {
        anyhow();
        return 0;
    }
    prepare();
    if (!strcmp(act, "child")) child();
    if (!strcmp(act, "attributes")) attributes();
    if (!strcmp(act, "changes")) changes();
    if (!strcmp(act, "contexts")) contexts();
    if (!strcmp(act, "streams")) streams();
    if (!strcmp(act, "graphs")) graphs();
    if (!strcmp(act, "a graph records") || !strcmp(act, "a launch records")) records(act[2] == 'g');
    return 0;
}
