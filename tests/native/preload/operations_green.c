/* Clients whose streams are those of a green context: each act prints what a test compares. */
#include "busy.h"

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
    prepare();
    if (!strcmp(act, "owned")) green_is_owned();
    if (!strcmp(act, "awaited")) green_is_awaited();
    if (!strcmp(act, "events")) green_has_events();
    if (!strcmp(act, "again")) green_again();
    if (!strcmp(act, "shared")) green_is_shared();
    return 0;
}
