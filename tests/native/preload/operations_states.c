/* Clients that share a GPU operation by operation, and more of what the library keeps in mind than it has room for, or
   than one client has: each act prints what a test compares. */
#include "busy.h"

enum { kEvents = 2000, kStreams = 2300 };

/* Of each event it is known that its record is still queued, however many there are. */
static void events(void) {
    static CUevent all[kEvents];
    buffers();
    for (int index = 0; index < kEvents; ++index) MUST(cuEventCreate(&all[index], CU_EVENT_DISABLE_TIMING));
    busy();
    fills(memory, 5, own);
    int early = 0;
    for (int index = 0; index < kEvents; ++index) {
        MUST(cuEventRecord(all[index], own));
        early += cuEventQuery(all[index]) == CUDA_SUCCESS;
    }
    printf("early %d\n", early);
    opens();
    MUST(cuStreamSynchronize(own));
}

/* A stream of one client that another one uses is waited for by either. */
static void* makes_stream(void* stream) {
    is_client(2);
    MUST(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    return NULL;
}

static void shared(void) {
    CUstream theirs;
    pthread_t maker;
    other();
    MUST(pthread_create(&maker, NULL, makes_stream, &theirs));
    MUST(pthread_join(maker, NULL));
    MUST(cuCtxSynchronize()); /* from now on nobody else's work is waited for */
    blocks(theirs);
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    MUST(cuCtxSynchronize());
    printf("opened %u\n", *(volatile uint32_t*)flag_here);
    MUST(pthread_join(opener, NULL));
}

/* Every blocking stream comes after what the default stream was given, and before what it is given next. */
static void streams(void) {
    static CUstream all[kStreams];
    uint32_t words[kWords];
    buffers();
    for (int index = 0; index < kStreams; ++index) MUST(cuStreamCreate(&all[index], CU_STREAM_DEFAULT));
    *flag_here = 0;
    blocks(NULL);
    fills(memory, 7, NULL);
    for (int index = 0; index < kStreams; ++index)
        MUST(cuMemcpyDtoDAsync(second + 4 * (CUdeviceptr)index, memory, 4, all[index]));
    opens_later(NULL);
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(words, second, sizeof(words)));
    int right = 0;
    for (int index = 0; index < kStreams; ++index) right += words[index] == 7;
    printf("after %d\n", right);
}

static void* gives_late(void* to) {
    is_client(1);
    blocks(to);
    return NULL;
}

/* A thread of a client gives one of two streams something, and is on its way to the driver while another thread of that
   client gives the other one something: what that gives afterwards comes after both. */
static void late_in(CUstream late, CUstream other_one) {
    pthread_t giver;
    *flag_here = 0;
    fills(memory, 1, late);
    fills(memory, 1, other_one);
    MUST(cuStreamSynchronize(other_one));
    ((void (*)(void))(uintptr_t)needed("pause_next"))();
    MUST(pthread_create(&giver, NULL, gives_late, late));
    ((void (*)(void))(uintptr_t)needed("wait_for_pause"))();
    fills(second, 1, other_one);
    ((void (*)(void))(uintptr_t)needed("go_on"))();
    MUST(pthread_join(giver, NULL));
    fills(second, 2, other_one);
    MUST(pthread_create(&opener, NULL, opens_later, NULL));
    MUST(cuStreamSynchronize(other_one));
    printf("opened %u\n", *(volatile uint32_t*)flag_here);
    MUST(pthread_join(opener, NULL));
    MUST(cuStreamSynchronize(late));
}

static void threads(void) {
    CUstream blocking;
    buffers();
    MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    late_in(NULL, blocking);
    late_in(blocking, NULL);
}

static void* copies_from(void* stream) {
    is_client(2);
    MUST(cuMemcpyDtoDAsync(second, memory, kWords * 4, stream));
    MUST(cuStreamSynchronize(stream));
    return NULL;
}

/* A stream that another client used so far comes after what that one has queued for its default stream. */
static void handed(void) {
    CUstream blocking;
    pthread_t thread;
    buffers();
    MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    fills(memory, 1, blocking);
    fills(memory, 1, NULL);
    MUST(cuCtxSynchronize());
    const CUstream first = busy_for_a_while();
    fills(memory, 5, NULL);
    MUST(pthread_create(&thread, NULL, copies_from, blocking));
    MUST(pthread_join(thread, NULL));
    printf("word %u\n", word_of(second));
    idle_again(first);
}

/* An event that is recorded in a capture belongs to it, also where its record before is still queued. */
static void captured(void) {
    CUstream side, joins;
    CUevent back;
    CUgraph graph;
    CUstreamCaptureStatus status;
    buffers();
    MUST(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&joins, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&back, CU_EVENT_DISABLE_TIMING));
    MUST(cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_RELAXED));
    const CUstream first = busy_for_a_while();
    fills(memory, 5, side);
    MUST(cuEventRecord(event, side));
    MUST(cuEventRecord(event, own));
    printf("waits %d\n", cuStreamWaitEvent(joins, event, 0));
    MUST(cuStreamIsCapturing(joins, &status));
    printf("captures %d\n", status);
    cuEventRecord(back, joins);
    cuStreamWaitEvent(own, back, 0);
    printf("ended %d\n", cuStreamEndCapture(own, &graph));
    idle_again(first);
}

/* A stream of this client, which captures from now on, and has captured something. */
static CUstream captures_as(int client) {
    CUstream stream;
    is_client(client);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    fills(second, 6, stream);
    return stream;
}

/* Whether client 0 is idle is also known while another one captures. */
static void beside(void) {
    CUstream first;
    CUgraph graph;
    buffers();
    is_client(0);
    MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    const CUstream theirs = captures_as(2);
    is_client(0);
    fills(second, 5, first);
    MUST(cuStreamSynchronize(first));
    is_client(1);
    fills(memory, 7, own);
    MUST(cuStreamSynchronize(own));
    is_client(2);
    MUST(cuStreamEndCapture(theirs, &graph));
    printf("words %u %u, opened %d\n", word_of(memory), word_of(second), plain() ? 0 : (int)counted(1).opened);
}

/* What another one has in flight is seen to end also while somebody captures. */
static void lands(void) {
    struct rl_admission rule = {sizeof(rule), 0x1FF, 64, 1, -1, 0, 0};
    CUgraph graph;
    buffers();
    if (!plain()) {
        MUST(RL(rl_operations_admission)(&rule));
        MUST(RL(rl_operations_profile)("fill_u32", RL_UNKNOWN, 60, 1000));
    }
    if (plain()) opens();
    const CUstream first = busy();
    fills(memory, 6, own);
    const CUstream theirs = captures_as(2);
    is_client(1);
    fills(memory, 7, own);
    MUST(cuStreamSynchronize(own));
    printf("opened %d\n", plain() ? 0 : (int)counted(1).opened);
    opens();
    is_client(2);
    MUST(cuStreamEndCapture(theirs, &graph));
    is_client(0);
    MUST(cuStreamSynchronize(first));
}

/* A stream of another context than the current one, which copies may name, is in order with the default one there. */
static void contexts(void) {
    CUcontext there;
    CUstream blocking;
    CUmodule module_there;
    buffers();
    MUST(cuCtxCreate(&there, NULL, 0, 0));
    MUST(cuModuleLoadData(&module_there, image));
    MUST(cuModuleGetFunction(&blocker, module_there, "wait_flag_u32"));
    MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    *flag_here = 0;
    blocks(NULL);
    MUST(cuMemsetD32Async(memory, 7, kWords, NULL));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemcpyDtoDAsync(second, memory, kWords * 4, blocking));
    opens_later(NULL);
    MUST(cuStreamSynchronize(blocking));
    printf("copied %u\n", word_of(second));
}

static void try_launch(unsigned blocks, unsigned threads) {
    uint32_t value = 5;
    uint64_t words = kWords;
    void* parameters[] = {&memory, &value, &words};
    printf("%d\n", cuLaunchKernel(fill, blocks, 1, 1, threads, 1, 1, 0, own, parameters, NULL));
}

/* What the driver refuses whatever it has to do is refused at once. */
static void refused(void) {
    buffers();
    const CUstream first = busy_for_a_while();
    try_launch(0, 1);
    try_launch(1, 0);
    try_launch(1, 2048);
    idle_again(first);
}

/* The error of what was queued is told by who waits for it, whatever is called in between. */
static void late(void) {
    uint32_t value = 5;
    uint64_t words = kWords;
    void* parameters[] = {&memory, &value, &words};
    CUstream another;
    CUdeviceptr more;
    buffers();
    const CUstream first = busy_for_a_while();
    MUST(cuLaunchKernel(fill, 1, 1, 1, 256, 1, 1, 100 << 10, own, parameters, NULL));
    printf("made %d\n", cuStreamCreate(&another, CU_STREAM_NON_BLOCKING));
    printf("allocated %d\n", cuMemAllocAsync(&more, 64, own));
    printf("ended %d\n", cuStreamSynchronize(own));
    idle_again(first);
}

int main(int count, char** words) {
    (void)count;
    prepare();
    if (strcmp(words[1], "events") == 0) events();
    if (strcmp(words[1], "shared") == 0) shared();
    if (strcmp(words[1], "streams") == 0) streams();
    if (strcmp(words[1], "threads") == 0) threads();
    if (strcmp(words[1], "handed") == 0) handed();
    if (strcmp(words[1], "captured") == 0) captured();
    if (strcmp(words[1], "beside") == 0) beside();
    if (strcmp(words[1], "lands") == 0) lands();
    if (strcmp(words[1], "contexts") == 0) contexts();
    if (strcmp(words[1], "refused") == 0) refused();
    if (strcmp(words[1], "late") == 0) late();
    return 0;
}
