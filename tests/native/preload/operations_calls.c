/* Clients that share a GPU operation by operation, and calls that mean something to what others have queued, or to a
   whole context: each act prints what a test compares. */
#include <sys/wait.h>

#include "clients.h"

enum { kMuch = 100 << 10 }; /* bytes of shared memory: more than a block has unless its function says so */

static CUdeviceptr second;
static pthread_t opener;

static void buffers(void) {
    other();
    MUST(cuMemAlloc(&second, kWords * 4));
    MUST(cuMemsetD32(second, 1, kWords));
}

/* Client 0 is busy until a thread opens it a little later; this thread is client 1. */
static CUstream busy_for_a_while(void) {
    *flag_here = 0;
    if (plain()) *flag_here = 1; /* there is nobody to wait for */
    const CUstream first = busy();
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    return first;
}

static void idle_again(CUstream first) {
    MUST(pthread_join(opener, NULL));
    is_client(0);
    MUST(cuStreamSynchronize(first));
    MUST(cuStreamDestroy(first));
    is_client(1);
}

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

/* What is queued when an event is recorded that another process may see is done before that one goes on. */
static void processes(void) {
    int to[2], from[2];
    must(pipe(to) | pipe(from), "pipe");
    const pid_t other_one = fork(); /* before there is a context, which a child has not */
    if (other_one == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        execl("/proc/self/exe", "operations-calls", "child", NULL);
        _Exit(8);
    }
    prepare();
    buffers();
    struct shared given_away;
    CUevent both;
    uint32_t there;
    char word = 0;
    MUST(cuEventCreate(&both, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    const CUstream first = busy_for_a_while();
    fills(memory, 5, own);
    MUST(cuEventRecord(both, own));
    MUST(cuIpcGetMemHandle(&given_away.memory, memory));
    MUST(cuIpcGetEventHandle(&given_away.event, both));
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

/* -- green contexts */

static CUgreenCtx green;

static void make_green(void) {
    CUdevResource all, part;
    CUdevResourceDesc description;
    unsigned groups = 1;
    MUST(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 16));
    MUST(cuDevResourceGenerateDesc(&description, &part, 1));
    MUST(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
}

static CUcontext current_green(void) {
    CUcontext part;
    MUST(cuCtxFromGreenCtx(&part, green));
    MUST(cuCtxSetCurrent(part));
    return part;
}

static CUstream green_stream(void) {
    CUstream made;
    MUST(cuGreenCtxStreamCreate(&made, green, CU_STREAM_NON_BLOCKING, 0));
    return made;
}

static CUstream given;

/* A thread of no client, as those of libraries are. */
static void* fills_given(void* unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    fills(memory, 5, given);
    return NULL;
}

/* The stream that a client made in a green context is that client's, whoever gives it work. */
static void green_is_owned(void) {
    pthread_t helper;
    buffers();
    make_green();
    given = green_stream();
    const CUstream first = busy_for_a_while();
    const int before = (int)counted(1).launched;
    MUST(pthread_create(&helper, NULL, fills_given, NULL));
    MUST(pthread_join(helper, NULL));
    printf("queued %d\n", cuStreamQuery(given));
    MUST(cuStreamSynchronize(given));
    printf("launched %d\n", (int)counted(1).launched - before);
    idle_again(first);
    MUST(cuStreamDestroy(given));
    MUST(cuGreenCtxDestroy(green));
}

/* Who waits for a primary context waits for its green ones; who waits for a green one waits for it alone. */
static void green_is_awaited(void) {
    buffers();
    make_green();
    const CUstream in_green = green_stream();
    *flag_here = 0;
    blocks(in_green);
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    MUST(cuCtxSynchronize());
    printf("primary %d\n", cuStreamQuery(in_green));
    MUST(pthread_join(opener, NULL));
    MUST(cuStreamSynchronize(in_green));
    *flag_here = 0;
    blocks(own);
    fills(memory, 5, in_green);
    current_green();
    MUST(cuCtxSynchronize());
    printf("green %d %d\n", cuStreamQuery(in_green), cuStreamQuery(own));
    opens();
    MUST(cuStreamSynchronize(own));
    MUST(cuStreamDestroy(in_green));
    MUST(cuCtxSetCurrent(context));
    MUST(cuGreenCtxDestroy(green));
}

/* The same of events: one of a primary context is recorded behind its green ones, which wait for what it waits for. */
static void green_has_events(void) {
    CUevent event;
    buffers();
    make_green();
    const CUstream in_green = green_stream();
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    *flag_here = 0;
    blocks(in_green);
    MUST(cuCtxRecordEvent(context, event));
    printf("recorded %d\n", cuEventQuery(event));
    opens();
    MUST(cuEventSynchronize(event));
    *flag_here = 0;
    blocks(own);
    MUST(cuEventRecord(event, own));
    MUST(cuCtxWaitEvent(context, event));
    const CUstream later = green_stream();
    fills(memory, 5, in_green);
    fills(memory, 6, later);
    printf("waits %d %d\n", cuStreamQuery(in_green), cuStreamQuery(later));
    opens();
    MUST(cuCtxSynchronize());
    MUST(cuEventDestroy(event));
    MUST(cuStreamDestroy(later));
    MUST(cuStreamDestroy(in_green));
    MUST(cuGreenCtxDestroy(green));
}

/* Green contexts come and go, and with them what the library has made in them for default streams. */
static void green_again(void) {
    buffers();
    for (uint32_t round = 0; round < 3; ++round) {
        make_green();
        current_green();
        fills(memory, round, NULL);
        MUST(cuStreamSynchronize(NULL));
        const CUstream first = busy_for_a_while(); /* which goes on in the primary one */
        current_green();
        fills(second, round + 10, NULL);
        printf("queued %d\n", cuStreamQuery(NULL));
        MUST(cuCtxSetCurrent(context));
        is_client(2);
        MUST(cuGreenCtxDestroy(green));
        is_client(1);
        printf("words %u %u\n", word_of(memory), word_of(second));
        idle_again(first);
    }
}

/* Streams of one green context that two clients have: their order by an event, a graph that one captures, and what is
   destroyed while it is queued. */
static void green_is_shared(void) {
    CUgraph graph;
    CUgraphExec executable;
    buffers();
    make_green();
    const CUstream mine = green_stream();
    is_client(2);
    const CUstream theirs = green_stream();
    is_client(1);
    MUST(cuStreamBeginCapture(mine, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(launch(lcg, memory, kWords, 2, mine));
    MUST(cuStreamEndCapture(mine, &graph));
    MUST(cuGraphInstantiate(&executable, graph, 0));
    const CUstream first = busy_for_a_while();
    fills(memory, 3, mine);
    MUST(cuGraphLaunch(executable, mine));
    MUST(cuEventRecord(event, mine));
    is_client(2);
    MUST(cuStreamWaitEvent(theirs, event, 0));
    MUST(cuMemcpyDtoDAsync(second, memory, kWords * 4, theirs));
    MUST(cuStreamDestroy(theirs));
    is_client(1);
    MUST(cuGraphExecDestroy(executable));
    MUST(cuStreamDestroy(mine));
    is_client(2);
    MUST(cuGreenCtxDestroy(green));
    is_client(1);
    MUST(cuCtxSynchronize());
    printf("%d %u\n", word_of(memory) == word_of(second), word_of(second));
    idle_again(first);
}

int main(int count, char** words) {
    const char* act = count > 1 ? words[1] : "";
    if (!strcmp(act, "processes")) {
        processes();
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
    if (!strcmp(act, "owned")) green_is_owned();
    if (!strcmp(act, "awaited")) green_is_awaited();
    if (!strcmp(act, "events")) green_has_events();
    if (!strcmp(act, "again")) green_again();
    if (!strcmp(act, "shared")) green_is_shared();
    return 0;
}
