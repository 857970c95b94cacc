/* Programs on the GPU that do what a preloaded library may not be ready for. `nasty ACT`; each prints the same in every
   run, and in a run without the library. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.h"
#include "state.h"

extern char** environ;

enum { kErrno = 77, kThreads = 4, kRounds = 200, kElements = 4096 };

static const size_t kPiece = (size_t)16 << 20;

/* Says what a call answers and whether errno stayed. */
#define SAY(call) (errno = kErrno, say((int)(call), errno, #call))

static void say(int result, int after, const char* call) { printf("%s: %d %d\n", call, result, after); }

static int take_and_give(void) {
    CUdeviceptr address;
    const int result = (int)cuMemAlloc(&address, kPiece);
    return result != 0 ? result : (int)cuMemFree(address);
}

/* ---- answers --------------------------------------------------------------------------------- */

static int answers(void) {
    CUcontext context, other;
    CUdeviceptr address = 0, second = 0;
    CUstream stream;
    uint32_t values[16];
    SAY(cuMemAlloc(&address, kPiece));
    SAY(cuInit(0));
    SAY(cuMemAlloc(&address, kPiece));
    SAY(cuDevicePrimaryCtxRetain(&context, 99));
    SAY(cuDevicePrimaryCtxRetain(&context, 0));
    SAY(cuCtxSetCurrent(context));
    SAY(cuMemAlloc(&address, 0));
    SAY(cuMemAlloc(NULL, kPiece));
    SAY(cuMemAlloc(&address, ~(size_t)0));
    SAY(cuMemAlloc(&address, kPiece));
    SAY(cuMemFree(0));
    SAY(cuMemFree(0x1234));
    SAY(cuMemFree(address + 4096));
    SAY(cuMemAlloc(&second, 100));
    SAY(cuMemsetD32(second, 5, 16));
    SAY(cuMemcpyDtoH(values, second, sizeof(values)));
    SAY(values[15]);
    SAY(cuMemFree(address));
    SAY(cuMemFree(address));
    SAY(cuMemFree(second));
    SAY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SAY(launch(NULL, 0, 1, 1, stream) != CUDA_SUCCESS);
    SAY(cuStreamSynchronize(stream));
    SAY(cuStreamDestroy(stream));
    SAY(cuMemGetInfo(NULL, NULL) != CUDA_SUCCESS);
    SAY(cuCtxCreate(&other, NULL, 0, 0));
    SAY(take_and_give());
    SAY(cuCtxDestroy(other));
    SAY(cuCtxSetCurrent(NULL));
    SAY(take_and_give());
    SAY(cuDevicePrimaryCtxRelease(0));
    SAY(cuCtxSetCurrent(context));
    SAY(cuDriverGetVersion(NULL));
    return 0;
}

static int state(void) {
    begin();
    MUST(take_and_give());
    print_state();
    return 21;
}

/* ---- signals --------------------------------------------------------------------------------- */

static volatile sig_atomic_t handled, wrong;

static void allocates(int number) {
    (void)number;
    wrong |= take_and_give();
    handled = handled + 1;
}

static void uses_ioctl(int number) {
    const int saved = errno;
    int waiting;
    (void)number;
    errno = kErrno;
    if (ioctl(0, FIONREAD, &waiting) == 0) wrong |= errno != kErrno;
    if (ioctl(-1, FIONREAD, &waiting) != -1 || errno != EBADF) wrong |= 1;
    errno = saved;
    handled = handled + 1;
}

/* Takes memory in a handler, between calls; then anything in handlers, in the middle of calls. */
static int handlers(void) {
    const struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    begin();
    signal(SIGUSR1, allocates);
    for (int round = 0; round < 20; ++round) raise(SIGUSR1);
    printf("handler %d %d\n", (int)handled, (int)wrong);
    const struct sigaction action = {.sa_handler = uses_ioctl, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    handled = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < kRounds || handled < 50; ++round) wrong |= take_and_give();
    setitimer(ITIMER_REAL, &never, NULL);
    printf("interrupted %d\n", (int)wrong);
    return 0;
}

/* ---- the end --------------------------------------------------------------------------------- */

static CUcontext to_the_end;

static void late(const char* when) {
    const int current = (int)cuCtxSetCurrent(to_the_end);
    printf("%s: %d %d\n", when, current, take_and_give());
}

static void at_exit(void) { late("at exit"); }

__attribute__((destructor)) static void destructor(void) {
    if (to_the_end != NULL) late("destructor");
}

static void of_thread(void* when) { late(when); }

static void* with_key(void* unused) {
    pthread_key_t key;
    (void)unused;
    pthread_key_create(&key, of_thread);
    pthread_setspecific(key, "of a thread");
    return NULL;
}

static int destructors(void) {
    pthread_t thread;
    atexit(at_exit);
    to_the_end = begin();
    pthread_create(&thread, NULL, with_key, NULL);
    pthread_join(thread, NULL);
    return 4;
}

struct Work {
    CUcontext context;
    CUfunction function;
    CUdeviceptr state;
};

/* For ever, and silently: what fails at the end of the process does not matter. */
static _Noreturn void* allocating(void* argument) {
    const struct Work* work = argument;
    cuCtxSetCurrent(work->context);
    for (;;) take_and_give();
}

static _Noreturn void* launching(void* argument) {
    const struct Work* work = argument;
    cuCtxSetCurrent(work->context);
    for (;;) {
        launch(work->function, work->state, kElements, 10, NULL);
        cuCtxSynchronize();
    }
}

static void busy_threads(void) {
    static struct Work work;
    work.context = begin();
    work.function = accumulate();
    MUST(cuMemAlloc(&work.state, kElements * 4));
    for (int index = 0; index < kThreads; ++index) {
        pthread_t thread;
        pthread_create(&thread, NULL, index % 2 ? allocating : launching, &work);
        pthread_detach(thread);
    }
    usleep(20000);
}

static int exit_race(void) {
    busy_threads();
    return 5;
}

/* ---- children -------------------------------------------------------------------------------- */

static int ended(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

/* Children of a process whose threads are in the middle of calls. */
static int forks(void) {
    static char* words[] = {"nasty", "alone", NULL};
    int statuses[4] = {0};
    busy_threads();
    fflush(stdout);
    for (int round = 0; round < 5; ++round) {
        for (int kind = 0; kind < 4; ++kind) {
            const pid_t child = fork();
            if (child == 0) {
                size_t free, total;
                if (kind == 0) _exit(0);
                if (kind == 1) _exit(take_and_give());
                if (kind == 2) _exit(cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
                close(1);
                execve("/proc/self/exe", words, environ);
                _exit(9);
            }
            statuses[kind] |= ended(child);
        }
    }
    printf("children %#x %#x %#x %#x\n", statuses[0], statuses[1], statuses[2], statuses[3]);
    printf("parent %d\n", take_and_give());
    fflush(stdout);
    _exit(0);
}

/* A child that ends in the long way, and one that lives on after its parent's memory was given back. */
static int heirs(void) {
    begin();
    MUST(take_and_give());
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) exit(6);
    printf("exit %d\n", WEXITSTATUS(ended(child)));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        const pid_t grandchild = fork();
        if (grandchild == 0) _exit(take_and_give() != 0 ? 7 : 0);
        _exit(WEXITSTATUS(ended(grandchild)));
    }
    printf("grandchild %d\n", WEXITSTATUS(ended(child)));
    printf("still %d\n", take_and_give());
    return 0;
}

static int spawns(void) {
    static char* words[] = {"nasty", "alone", NULL};
    pid_t child;
    begin();
    fflush(stdout);
    MUST(posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ));
    printf("spawn %d\n", ended(child));
    fflush(stdout);
    child = vfork();
    if (child == 0) {
        execve("/proc/self/exe", words, environ);
        _exit(9);
    }
    printf("vfork %d\n", ended(child));
    printf("system %d\n", system("true"));
    printf("still %d\n", take_and_give());
    return 0;
}

static int becomes(void) {
    static char* words[] = {"nasty", "alone", NULL};
    begin();
    MUST(take_and_give());
    return execve("/proc/self/exe", words, environ);
}

static int alone(void) {
    begin();
    printf("alone %d\n", take_and_give());
    return 0;
}

/* ---- libraries, descriptors and stacks ------------------------------------------------------- */

/* Closes the library that it was given, more often than it was opened. */
static int closes_library(void) {
    begin();
    MUST(take_and_give());
    void* library = dlopen(getenv("LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    for (int round = 0; library != NULL && round < 3; ++round) dlclose(library);
    printf("closed %d\n", take_and_give());
    return 0;
}

static int closes_before(void) {
    syscall(SYS_close_range, 3, ~0U, 0);
    begin();
    printf("closed %d\n", take_and_give());
    return 0;
}

static int closes_after(void) {
    begin();
    MUST(take_and_give());
    syscall(SYS_close_range, 3, ~0U, 0);
    printf("closed %d\n", take_and_give() != 0);
    for (int count = 0; count < 64; ++count) open("/dev/null", O_RDONLY);
    printf("in their place %d\n", take_and_give() != 0);
    fflush(stdout);
    _exit(0);
}

static void* in_thread(void* context) {
    MUST(cuCtxSetCurrent(context));
    return (void*)(intptr_t)take_and_give();
}

static int small_stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    void* result;
    CUcontext context = begin();
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 32768);
    MUST(pthread_create(&thread, &attributes, in_thread, context));
    pthread_join(thread, &result);
    printf("small %d\n", (int)(intptr_t)result);
    return 0;
}

static int many_threads(void) {
    intptr_t wrong_ones = 0;
    CUcontext context = begin();
    for (int round = 0; round < 10; ++round) {
        pthread_t threads[16];
        for (int index = 0; index < 16; ++index) MUST(pthread_create(&threads[index], NULL, in_thread, context));
        for (int index = 0; index < 16; ++index) {
            void* result;
            pthread_join(threads[index], &result);
            wrong_ones |= (intptr_t)result;
        }
    }
    printf("threads %d\n", (int)wrong_ones);
    return 0;
}

/* Numbers that the GPU computes, in launches of each form that is at hand. */
static int computes(void) {
    enum { kCount = 1000 };
    uint32_t values[kCount] = {0}, sum = 0;
    CUdeviceptr state_of;
    CUstream streams[3] = {NULL, CU_STREAM_PER_THREAD, NULL};
    begin();
    const CUfunction function = accumulate();
    MUST(cuStreamCreate(&streams[2], CU_STREAM_DEFAULT));
    MUST(cuMemAlloc(&state_of, sizeof(values)));
    MUST(cuMemcpyHtoD(state_of, values, sizeof(values)));
    for (int round = 0; round < 30; ++round) {
        MUST(launch(function, state_of, kCount, 3, streams[round % 3]));
        MUST(cuCtxSynchronize());
    }
    uint64_t count = kCount;
    uint32_t rounds = 7;
    void* parameters[] = {&state_of, &count, &rounds};
    const CUlaunchConfig config = {
        .gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256, .blockDimY = 1, .blockDimZ = 1};
    MUST(cuLaunchKernelEx(&config, function, parameters, NULL));
    MUST(cuMemcpyDtoH(values, state_of, sizeof(values)));
    for (int index = 0; index < kCount; ++index) sum = sum * 31 + values[index];
    printf("sum %u\n", (unsigned)sum);
    return 0;
}

static const struct Act {
    const char* name;
    int (*run)(void);
} kActs[] = {
    {"answers", answers},
    {"state", state},
    {"handlers", handlers},
    {"destructors", destructors},
    {"exit_race", exit_race},
    {"forks", forks},
    {"heirs", heirs},
    {"spawns", spawns},
    {"becomes", becomes},
    {"alone", alone},
    {"closes_library", closes_library},
    {"closes_before", closes_before},
    {"closes_after", closes_after},
    {"small_stack", small_stack},
    {"many_threads", many_threads},
    {"computes", computes},
};

int main(int count, char** words) {
    for (size_t index = 0; count > 1 && index < sizeof(kActs) / sizeof(*kActs); ++index)
        if (!strcmp(words[1], kActs[index].name)) return kActs[index].run();
    return 2;
}
