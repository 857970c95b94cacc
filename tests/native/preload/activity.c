/* Works for a GPU and waits for it as it is told: reads words from its input, and answers each with `WORD RESULT` once
   it is done. errno must stay as it was. A thread that waits does so behind a function of the host that `open` ends. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.h"

static CUstream stream;
static CUstream aside;
static CUevent event;
static CUdeviceptr memory;
static void* pinned;
static CUgraph graph;
static CUgraphExec executable;
static CUcontext context;
static CUfunction kernel;
static sem_t gate;
static sem_t shutting;
static sem_t more;
static sem_t done;
static pthread_t waiter;
static sigjmp_buf back;

static void CUDA_CB shut(void* unused) {
    (void)unused;
    sem_post(&shutting);
    while (sem_wait(&gate) != 0) {
    }
}

/* Until the stream has come to it. */
static CUresult shuts(void) {
    MUST(cuLaunchHostFunc(stream, shut, NULL));
    while (sem_wait(&shutting) != 0) {
    }
    return CUDA_SUCCESS;
}

/* What the stream calls, how often it did so, and whether with what it was given. */
static int called;
static int right;
static void CUDA_CB call(void* data) {
    called++;
    right += data == &called;
}
static void CUDA_CB call_back(CUstream by, CUresult status, void* data) {
    called++;
    right += by == stream && status == CUDA_SUCCESS && data == &called;
}
static CUresult call_many(void) {
    for (int one = 0; one < 200; one++) {
        MUST(cuLaunchHostFunc(stream, call, &called));
        MUST(cuStreamAddCallback(stream, call_back, &called, 0));
    }
    return CUDA_SUCCESS;
}
/* A callback is also called when work before it has failed, which it is told. */
static int failures;
static void CUDA_CB call_back_failed(CUstream by, CUresult status, void* data) {
    failures += by == stream && status == CUDA_ERROR_ILLEGAL_ADDRESS && data == &called;
}
static CUresult say_failures(void) {
    printf("failures %d\n", failures);
    return CUDA_SUCCESS;
}
/* Functions that are never called: work before them fails. */
static CUresult call_in_vain(void) {
    for (int one = 0; one < 100; one++) MUST(cuLaunchHostFunc(stream, call, &called));
    return CUDA_SUCCESS;
}
static CUresult say_called(void) {
    printf("called %d %d\n", called, right);
    return CUDA_SUCCESS;
}

static CUresult sync_stream(void) { return cuStreamSynchronize(stream); }
static CUresult sync_event(void) { return cuEventSynchronize(event); }
static CUresult sync_context(void) { return cuCtxSynchronize(); }
static CUresult ends(void) { return cuStreamEndCapture(stream, &graph); }
static CUresult sync_copy(void) {
    uint32_t word;
    return cuMemcpyDtoH(&word, memory, sizeof(word));
}

/* Into memory of the host that no driver pinned: done when the call returns. */
static CUresult copy_out(void) {
    static uint32_t words[256];
    return cuMemcpyDtoHAsync(words, memory, sizeof(words), stream);
}

static CUresult copy_anywhere(void) {
    static uint32_t words[256];
    return cuMemcpyAsync((CUdeviceptr)words, memory, sizeof(words), stream);
}

/* Into pinned memory: only submitted. */
static CUresult copy_pinned(void) { return cuMemcpyDtoHAsync(pinned, memory, 1024, stream); }

static CUresult (*wait_by)(void);

static void* waits(void* jumps) {
    CUresult result = cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS && (jumps == NULL || sigsetjmp(back, 1) == 0)) result = wait_by();
    if (jumps != NULL) pause();
    return (void*)(size_t)result;
}

static CUresult starts(CUresult (*by)(void), void* jumps) {
    wait_by = by;
    return pthread_create(&waiter, NULL, waits, jumps);
}

static void leaps(int number) { siglongjmp(back, number); }

static CUresult joins(void) {
    void* result;
    MUST(pthread_join(waiter, &result));
    return (CUresult)(size_t)result;
}

static CUresult works(void) { return launch(kernel, memory, 256, 1, stream); }

/* By the function that the driver finds, as the CUDA runtime does. */
static CUresult works_found(void) {
    CUresult (*found)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                      void**, void**) = NULL;
    uint64_t count = 256;
    uint32_t rounds = 1;
    void* parameters[] = {&memory, &count, &rounds};
    MUST(cuGetProcAddress("cuLaunchKernel", (void**)&found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    return found(kernel, 1, 1, 1, 256, 1, 1, 0, stream, parameters, NULL);
}

/* Works without a pause until it leaps out of a launch; from then on it works once whenever it is told to. */
static void* works_on(void* unused) {
    (void)unused;
    CUresult result = cuCtxSetCurrent(context);
    if (sigsetjmp(back, 1) == 0) {
        while (result == CUDA_SUCCESS) result = works();
    }
    while (sem_wait(&more) == 0) {
        MUST(works());
        sem_post(&done);
    }
    return NULL;
}

static CUresult works_there(void) {
    sem_post(&more);
    return (CUresult)sem_wait(&done);
}

static CUresult prepare(void) {
    kernel = accumulate();
    MUST(sem_init(&gate, 0, 0));
    MUST(sem_init(&shutting, 0, 0));
    MUST(sem_init(&more, 0, 0));
    MUST(sem_init(&done, 0, 0));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&aside, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DEFAULT));
    MUST(cuMemAlloc(&memory, 4096));
    MUST(cuMemHostAlloc(&pinned, 1024, 0));
    return CUDA_SUCCESS;
}

/* A kernel that reads what nobody may: its context is of no use any more. */
static CUresult fails(void) { return launch(kernel, 16, 256, 1, stream); }

static CUresult begins_anew(void) {
    cuDevicePrimaryCtxReset(0); /* which may say how it failed */
    context = begin();
    return prepare();
}

/* With a context of its own, which ends as it began. */
static CUresult ends_another(void) {
    CUcontext made;
    MUST(cuCtxCreate(&made, NULL, 0, 0));
    return cuCtxDestroy(made);
}

static CUresult graph_of_two(void) {
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(works());
    MUST(works());
    MUST(cuStreamEndCapture(stream, &graph));
    return cuGraphInstantiate(&executable, graph, 0);
}

static CUresult asks(void) {
    cuStreamQuery(stream);
    cuEventQuery(event);
    return cuStreamWaitEvent(stream, event, 0);
}

/* A child that goes on with what was asked, and in its parent the end of it. */
static CUresult forks(void) {
    int status;
    const pid_t child = fork();
    if (child == 0) {
        printf("child %d\n", getpid());
        return CUDA_SUCCESS;
    }
    waitpid(child, &status, 0);
    return CUDA_SUCCESS;
}

static CUresult does(const char* word, char** words) {
    if (!strcmp(word, "launch")) return works();
    if (!strcmp(word, "launch-found")) return works_found();
    if (!strcmp(word, "graph")) return graph_of_two();
    if (!strcmp(word, "launch-graph")) return cuGraphLaunch(executable, stream);
    if (!strcmp(word, "capture")) return cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    if (!strcmp(word, "captured")) return ends();
    if (!strcmp(word, "end-elsewhere")) return starts(ends, NULL);
    if (!strcmp(word, "aside")) return launch(kernel, memory, 256, 1, aside);
    if (!strcmp(word, "end-aside")) return cuStreamEndCapture(aside, &graph);
    if (!strcmp(word, "fill")) return cuMemsetD32Async(memory, 0, 16, stream);
    if (!strcmp(word, "record")) return cuEventRecord(event, stream);
    if (!strcmp(word, "ask")) return asks();
    if (!strcmp(word, "query")) return used() == 0;
    if (!strcmp(word, "stream")) return sync_stream();
    if (!strcmp(word, "event")) return sync_event();
    if (!strcmp(word, "context")) return sync_context();
    if (!strcmp(word, "copy")) return sync_copy();
    if (!strcmp(word, "copy-out")) return copy_out();
    if (!strcmp(word, "copy-pinned")) return copy_pinned();
    if (!strcmp(word, "shut")) return shuts();
    if (!strcmp(word, "call")) return cuLaunchHostFunc(stream, call, &called);
    if (!strcmp(word, "call-back")) return cuStreamAddCallback(stream, call_back, &called, 0);
    if (!strcmp(word, "call-many")) return call_many();
    if (!strcmp(word, "call-in-vain")) return call_in_vain();
    if (!strcmp(word, "call-back-failed")) return cuStreamAddCallback(stream, call_back_failed, &called, 0);
    if (!strcmp(word, "failures")) return say_failures();
    if (!strcmp(word, "call-nothing")) return cuLaunchHostFunc(stream, NULL, NULL);
    if (!strcmp(word, "called")) return say_called();
    if (!strcmp(word, "fail")) return fails();
    if (!strcmp(word, "anew")) return begins_anew();
    if (!strcmp(word, "another")) return ends_another();
    if (!strcmp(word, "made")) return cuGraphInstantiate(&executable, graph, 0);
    if (!strcmp(word, "open")) return (CUresult)sem_post(&gate);
    if (!strcmp(word, "wait-stream")) return starts(sync_stream, NULL);
    if (!strcmp(word, "wait-event")) return starts(sync_event, NULL);
    if (!strcmp(word, "wait-context")) return starts(sync_context, NULL);
    if (!strcmp(word, "wait-copy-out")) return starts(copy_out, NULL);
    if (!strcmp(word, "wait-copy-anywhere")) return starts(copy_anywhere, NULL);
    if (!strcmp(word, "wait-or-leap")) return starts(sync_stream, &back);
    if (!strcmp(word, "work-or-leap")) return (CUresult)pthread_create(&waiter, NULL, works_on, NULL);
    if (!strcmp(word, "work-there")) return works_there();
    if (!strcmp(word, "join")) return joins();
    if (!strcmp(word, "leap")) return (CUresult)pthread_kill(waiter, SIGUSR1);
    if (!strcmp(word, "fork")) return forks();
    if (!strcmp(word, "exec")) return (CUresult)execv(words[0], words);
    return CUDA_ERROR_INVALID_VALUE;
}

int main(int count, char** words) {
    char word[64];
    (void)count;
    signal(SIGUSR1, leaps);
    context = begin();
    MUST(prepare());
    puts("ready 0");
    fflush(stdout);
    while (scanf("%63s", word) == 1) {
        errno = 77;
        const CUresult result = does(word, words);
        if (errno != 77) printf("errno %d\n", errno);
        printf("%s %d\n", word, (int)result);
        fflush(stdout);
    }
    _exit(0);
}
