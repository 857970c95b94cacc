/* Clients that share a GPU operation by operation, and what comes before, after and between their scheduler's runs:
   each act prints what it would print if nothing were scheduled. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "busy.h"

static void starts(int clients) {
    if (!plain()) MUST(RL(rl_operations_start)(clients));
}

static void stops(void) {
    if (!plain()) MUST(RL(rl_operations_stop)());
}

static void becomes(int index) {
    if (!plain()) RL(rl_operations_client)(index); /* or stays who it was, where there are no clients now */
}

static void opens_soon(void) { MUST(pthread_create(&opener, NULL, opens_later, NULL)); }

/* The next one waits for a word of its own. */
static void is_opened(void) {
    MUST(pthread_join(opener, NULL));
    ++flag_here;
    flag += sizeof(*flag_here);
}

static void two_buffers(void) {
    MUST(cuMemAlloc(&memory, kWords * 4));
    MUST(cuMemAlloc(&second, kWords * 4));
    MUST(cuMemsetD32(memory, 1, kWords));
    MUST(cuMemsetD32(second, 1, kWords));
    MUST(cuCtxSynchronize());
}

/* What a stream does after all that was given to another one so far, which waits until it is opened. Prints what it saw
   of that. */
static void gives(CUstream before, uint32_t value) {
    blocks(before);
    fills(memory, value, before);
}

static void sees(CUstream after) {
    MUST(cuMemcpyDtoDAsync(second, memory, kWords * 4, after));
    opens_soon();
    MUST(cuStreamSynchronize(after));
    is_opened();
    printf("%u\n", word_of(second));
}

/* What was given to a client's default stream is waited for and comes first when there are no clients any more. */
static void stopped(void) {
    CUstream blocking;
    make_context();
    two_buffers();
    MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    starts(2);
    becomes(1);
    gives(NULL, 5);
    stops();
    printf("%d\n", cuStreamQuery(NULL));
    sees(blocking);

    starts(2);
    blocks(NULL);
    stops();
    opens_soon();
    MUST(cuStreamSynchronize(NULL));
    printf("%u\n", *(volatile uint32_t*)flag_here);
    is_opened();
}

/* A client gives its default stream something, and a stream captures: that one, and a blocking stream beside it. */
static CUstream capturing, beside;

static void begins_capture(unsigned flags, CUstreamCaptureMode mode) {
    make_context();
    two_buffers();
    MUST(cuStreamCreate(&capturing, flags));
    MUST(cuStreamCreate(&beside, CU_STREAM_DEFAULT));
    starts(2);
    becomes(1);
    gives(NULL, 5);
    MUST(cuStreamBeginCapture(capturing, mode));
    fills(memory, 7, capturing);
    stops();
}

static void ends_capture(void) {
    CUgraph graph;
    size_t nodes;
    MUST(cuStreamEndCapture(capturing, &graph));
    MUST(cuGraphGetNodes(graph, NULL, &nodes));
    printf("%zu nodes\n", nodes);
}

static void asks_and_sees(void) {
    printf("%d\n", cuStreamQuery(NULL));
    sees(beside);
}

/* The same while another stream captures what it is given. */
static void relaxed(void) {
    begins_capture(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_RELAXED);
    fills(memory, 8, capturing);
    asks_and_sees();
    ends_capture();
}

/* Nothing may be asked beside these: the capture fails, as the program sees at its end. */
static void strict(CUstreamCaptureMode mode) {
    CUgraph graph;
    begins_capture(CU_STREAM_NON_BLOCKING, mode);
    printf("%d\n", cuStreamQuery(NULL));
    printf("%d\n", cuStreamEndCapture(capturing, &graph));
    sees(beside);
}

/* The same where a stream captures that the default stream must not come beside. */
static void implicit(void) {
    begins_capture(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_RELAXED);
    ends_capture();
    asks_and_sees();
}

/* What blocking streams were given before there were clients comes before what these give their default stream: streams
   of before the first start, and of between two. */
static void started(void) {
    CUstream blocking;
    make_context();
    two_buffers();
    MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    for (uint32_t turn = 0; turn < 3; ++turn) {
        gives(blocking, 5 + turn);
        starts(2);
        becomes(1);
        sees(NULL);
        stops();
    }
    MUST(cuStreamDestroy(blocking));
}

/* A stream of before its thread was a client, and one of afterwards, when that one is gone. */
static void joined(void) {
    CUstream early, late;
    make_context();
    two_buffers();
    starts(2);
    MUST(cuStreamCreate(&early, CU_STREAM_DEFAULT));
    becomes(1);
    gives(early, 5);
    sees(NULL);
    gives(NULL, 6);
    sees(early);
    MUST(cuStreamDestroy(early));
    MUST(cuStreamCreate(&late, CU_STREAM_DEFAULT));
    gives(late, 7);
    sees(NULL);
    gives(NULL, 8);
    sees(late);
    stops();
}

/* A thread that goes on as another client, or as none, gives more after what it gave before. */
static void moves(void) {
    CUstream nobodys, own_of[3];
    make_context();
    two_buffers();
    starts(3);
    MUST(cuStreamCreate(&nobodys, CU_STREAM_DEFAULT));
    for (int index = 0; index < 3; ++index) {
        becomes(index);
        fills(memory, 1, NULL); /* there is such a stream */
        MUST(cuStreamCreate(&own_of[index], CU_STREAM_DEFAULT));
        fills(memory, 1, own_of[index]);
        MUST(cuStreamSynchronize(NULL));
    }
    const int order[] = {-1, 1, 2, 0, -1, 2};
    CUstream before = nobodys;
    for (uint32_t turn = 0; turn < 6; ++turn) {
        gives(before, 5 + turn);
        becomes(order[turn]);
        sees(NULL);
        before = order[turn] < 0 ? nobodys : turn % 2 != 0 ? own_of[order[turn]] : NULL;
    }
    stops();
}

/* A client waits for all that its thread gave before it was one, or as another one, to streams that are not its own. */
static void awaits(void) {
    CUstream nobodys, anothers;
    make_context();
    MUST(cuStreamCreate(&nobodys, CU_STREAM_NON_BLOCKING));
    for (int turn = 0; turn < 4; ++turn) {
        if (turn == 2) becomes(-1);
        if (turn == 3) {
            becomes(0);
            MUST(cuStreamCreate(&anothers, CU_STREAM_NON_BLOCKING));
        }
        blocks(turn == 3 ? anothers : nobodys);
        if (turn < 2) starts(2);
        becomes(1);
        opens_soon();
        MUST(cuCtxSynchronize());
        printf("%u\n", *(volatile uint32_t*)flag_here);
        is_opened();
        if (turn == 0) stops();
    }
}

static void waits_here(void* unused) {
    (void)unused;
    while (*(volatile uint32_t*)flag_here == 0) usleep(1000);
}

/* What is waited for in one context is not in another one. */
static void contexts(void) {
    CUcontext another;
    make_context();
    starts(2);
    MUST(cuCtxCreate(&another, NULL, 0, 0));
    MUST(cuLaunchHostFunc(NULL, waits_here, NULL));
    becomes(1);
    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamSynchronize(NULL));
    MUST(cuCtxSetCurrent(another));
    opens_soon();
    MUST(cuStreamSynchronize(NULL));
    printf("%u\n", *(volatile uint32_t*)flag_here);
    MUST(pthread_join(opener, NULL));
}

/* A child of fork is no client before it says so. */
static void children(void) {
    starts(3);
    becomes(2);
    const pid_t child = fork();
    if (child == 0) {
        starts(3);
        make_context();
        two_buffers();
        fills(memory, 5, NULL);
        MUST(cuStreamSynchronize(NULL));
        printf("%u %d\n", word_of(memory), plain() ? 0 : (int)counted(2).launched);
        fflush(stdout);
        _Exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) != child || status != 0, "child");
}

/* What was refused of what was queued is told also when there are no clients any more. */
static void refused(void) {
    make_context();
    two_buffers();
    starts(2);
    is_client(1);
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    if (!plain()) (void)busy();
    uint64_t count = kWords;
    uint32_t value = 5;
    void* parameters[] = {&memory, &value, &count};
    CUresult result = cuLaunchKernel(fill, kWords / 256, 1, 1, 256, 1, 1, 100 << 10, own, parameters, NULL);
    stops();
    if (result == CUDA_SUCCESS) result = cuStreamSynchronize(own);
    printf("%d %d\n", result, cuStreamSynchronize(own));
    opens();
}

/* Streams stay their makers' from run to run: another thread gives them work in order with the maker's default stream.
 */
static CUstream helped;

static void* helps(void* unused) {
    (void)unused;
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemcpyDtoDAsync(second, memory, kWords * 4, helped));
    return NULL;
}

static void helpers(void) {
    pthread_t thread;
    make_context();
    two_buffers();
    starts(2);
    becomes(1);
    for (uint32_t turn = 0; turn < 2; ++turn) {
        if (turn == 0) MUST(cuStreamCreate(&helped, CU_STREAM_DEFAULT));
        stops();
        if (turn == 1) MUST(cuStreamCreate(&helped, CU_STREAM_DEFAULT));
        starts(2);
        gives(NULL, 5 + turn);
        MUST(pthread_create(&thread, NULL, helps, NULL));
        MUST(pthread_join(thread, NULL));
        opens_soon();
        MUST(cuStreamSynchronize(helped));
        is_opened();
        printf("%u\n", word_of(second));
    }
}

/* A client gives work to a stream that another one made. */
static void shared(void) {
    CUstream anothers;
    make_context();
    two_buffers();
    starts(3);
    becomes(1);
    MUST(cuStreamCreate(&anothers, CU_STREAM_DEFAULT));
    fills(memory, 1, anothers);
    fills(memory, 1, NULL);
    for (uint32_t turn = 0; turn < 2; ++turn) {
        becomes(2 - (int)turn);
        gives(anothers, 5 + 2 * turn);
        sees(NULL);
        gives(NULL, 6 + 2 * turn);
        sees(anothers);
    }
    MUST(cuStreamDestroy(anothers));
    stops();
}

/* A context ends while there are no clients, and the next one may be known by the same name. */
static void ended(void) {
    for (uint32_t turn = 0; turn < 3; ++turn) {
        make_context();
        two_buffers();
        starts(2);
        becomes(1);
        if (!plain()) MUST(RL(rl_operations_log)(1));
        fills(memory, 5 + turn, NULL);
        MUST(cuStreamSynchronize(NULL));
        printf("%u\n", word_of(memory));
        stops();
        CUcontext same;
        MUST(cuDevicePrimaryCtxRetain(&same, 0));
        MUST(cuDevicePrimaryCtxRelease(0));
        MUST(cuDevicePrimaryCtxRelease(0));
    }
}

/* -- calls that are slow, and what others change meanwhile */

static uintptr_t edge; /* memory that nobody can read before it is opened */
static atomic_int waiting, open_edge;

static void waits_at_the_edge(int number, siginfo_t* told, void* state) {
    (void)state;
    if ((uintptr_t)told->si_addr - edge >= 4096) {
        signal(number, SIG_DFL);
        return;
    }
    waiting = 1;
    while (!open_edge) usleep(1000);
    mprotect((void*)edge, 4096, PROT_READ | PROT_WRITE);
}

static CUstream given_to;
static int given_by;

/* Fills memory as a client, whose call stops in its midst until the edge is opened; then waits for it. */
static void* is_slow(void* value) {
    is_client(given_by);
    uint64_t count = kWords;
    uint32_t with = (uint32_t)(uintptr_t)value;
    void** parameters = (void**)edge;
    parameters[0] = &memory;
    parameters[1] = &with;
    parameters[2] = &count;
    MUST(mprotect((void*)edge, 4096, PROT_NONE));
    MUST(cuLaunchKernel(fill, kWords / 256, 1, 1, 256, 1, 1, 0, given_to, parameters, NULL));
    MUST(cuStreamSynchronize(given_to));
    return NULL;
}

/* A client's launch that is under way while the scheduler is stopped and started with fewer clients. */
static void slow(void) {
    pthread_t thread;
    const struct sigaction action = {.sa_sigaction = waits_at_the_edge, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSEGV, &action, NULL));
    edge = (uintptr_t)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    make_context();
    two_buffers();
    starts(3);
    given_by = 2;
    is_client(2);
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    given_to = own;
    const CUstream first = busy();
    MUST(pthread_create(&thread, NULL, is_slow, (void*)5));
    while (!waiting) usleep(1000);
    stops();
    starts(2);
    is_client(0);
    blocks(first); /* so that what is given is queued */
    opens_soon();
    open_edge = 1;
    MUST(pthread_join(thread, NULL));
    printf("%u\n", word_of(memory));
    is_opened();
    MUST(cuStreamSynchronize(first));
    stops();
}

/* A launch stands still between the library and the driver while clients come or go. What it gives comes before all
   that its thread gives afterwards. */
static void* gives_late(void* stream) {
    MUST(cuCtxSetCurrent(context));
    becomes(given_by);
    blocks(stream);
    printf("%d\n", cuStreamQuery(stream));
    becomes(1);
    fills(memory, 5, given_to);
    usleep(20000);
    printf("%d\n", cuStreamQuery(given_to));
    opens();
    MUST(cuStreamSynchronize(given_to));
    return NULL;
}

static void late(bool stops_it) {
    pthread_t thread;
    make_context();
    two_buffers();
    MUST(cuStreamCreate(&own, CU_STREAM_DEFAULT));
    starts(2);
    is_client(1);
    fills(memory, 1, NULL); /* so that there is such a stream */
    MUST(cuStreamSynchronize(NULL));
    if (!stops_it) stops();
    given_by = stops_it ? 1 : -1;
    given_to = stops_it ? own : NULL;
    ((void (*)(void))(uintptr_t)needed("pause_next"))();
    MUST(pthread_create(&thread, NULL, gives_late, stops_it ? NULL : own));
    ((void (*)(void))(uintptr_t)needed("wait_for_pause"))();
    if (stops_it)
        stops();
    else
        starts(2);
    ((void (*)(void))(uintptr_t)needed("go_on"))();
    MUST(pthread_join(thread, NULL));
}

int main(int count, char** words) {
    const char* act = count > 1 ? words[1] : "";
    if (!strcmp(act, "stopped")) stopped();
    if (!strcmp(act, "relaxed")) relaxed();
    if (!strcmp(act, "global")) strict(CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!strcmp(act, "local")) strict(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    if (!strcmp(act, "implicit")) implicit();
    if (!strcmp(act, "started")) started();
    if (!strcmp(act, "joined")) joined();
    if (!strcmp(act, "moves")) moves();
    if (!strcmp(act, "ended")) ended();
    if (!strcmp(act, "awaits")) awaits();
    if (!strcmp(act, "shared")) shared();
    if (!strcmp(act, "helpers")) helpers();
    if (!strcmp(act, "contexts")) contexts();
    if (!strcmp(act, "children")) children();
    if (!strcmp(act, "refused")) refused();
    if (!strcmp(act, "slow")) slow();
    if (!strcmp(act, "late stop")) late(true);
    if (!strcmp(act, "late start")) late(false);
    return 0;
}
