/* A program that is not linked with libcuda and looks for things in ways that few do. `hostile ACT [FILE]`. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.h"

/* A function as the pointer that a look-up gave. */
#define FUNCTION(type, pointer) (*(__typeof__(type)*)(void*[]){(pointer)})

static void* opened(const char* file) {
    void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) must(1, dlerror());
    return library;
}

/* What comes next after a library that was opened, and after the libcuda that it uses. */
static int next(void) {
    static const char* const kNames[] = {"dlsym", "dlvsym", "dlmopen", "ioctl", "cuMemGetInfo_v2", "nothing"};
    size_t free = 0, total = 0;
    opened("libcuda.so.1");
    void* library = opened(getenv("THROUGH"));
    void* (*const after)(const char*) = FUNCTION(void* (*)(const char*), dlsym(library, "through_next"));
    for (size_t index = 0; index < sizeof(kNames) / sizeof(*kNames); ++index)
        printf("%s %d\n", kNames[index], after(kNames[index]) != NULL);
    FUNCTION(CUresult (*)(void), dlsym(library, "through_begin"))();
    void* again = FUNCTION(void* (*)(void*, const char*), after("dlsym"))(library, "through_query");
    MUST(FUNCTION(CUresult (*)(size_t*, size_t*), again)(&free, &total));
    printf("query %zu\n", total);
    MUST(FUNCTION(CUresult (*)(size_t*, size_t*), after("cuMemGetInfo_v2"))(&free, &total));
    printf("next %zu\n", total);
    return 0;
}

/* What it has itself: no function of a library that is not there. */
static int itself(void) {
    printf("%d ", dlsym(dlopen(NULL, RTLD_NOW), "cuMemGetInfo_v2") != NULL);
    printf("%d\n", dlerror() != NULL);
    return 0;
}

/* Namespaces without CUDA, more than there is room for with it. */
static int spaces(const char* file) {
    for (int round = 0; round < 8; ++round) {
        void* library = dlmopen(LM_ID_NEWLM, file, RTLD_NOW);
        printf("%s\n", library == NULL ? dlerror() : "opened");
        if (library != NULL) printf("%d\n", FUNCTION(int (*)(void), dlsym(library, "leaf"))());
    }
    return 0;
}

static int together[2];

static int stays_in(struct dl_phdr_info* object, size_t size, void* unused) {
    (void)object, (void)size, (void)unused;
    return write(together[1], "", 1) == 1 ? pause() : 1;
}

static void* looks_around(void* unused) {
    dl_iterate_phdr(stays_in, unused);
    return NULL;
}

/* A child of fork, which finds the dynamic linker's list locked for ever. */
static int forks(void) {
    pthread_t thread;
    char byte;
    int status = -1, waiting;
    void* library = opened(getenv("THROUGH"));
    void* cuda = opened("libcuda.so.1");
    printf("%d", dlsym(cuda, "cuMemGetInfo_v2") != NULL);
    fflush(stdout);
    MUST(pipe(together));
    MUST(pthread_create(&thread, NULL, looks_around, NULL));
    if (read(together[0], &byte, 1) != 1) return 1;
    const pid_t child = fork();
    if (child == 0) {
        alarm(5);
        ioctl(together[0], FIONREAD, &waiting);
        dlsym(RTLD_DEFAULT, "cuMemGetInfo_v2");
        dlsym(cuda, "cuMemGetInfo_v2");
        dlsym(cuda, "cuInit");
        dlsym(library, "through_query");
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf(" %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    fflush(stdout);
    _exit(0);
}

/* Whether memory of the process itself grows by managed memory that comes and goes. */
static int grows(void) {
    void* library = opened(getenv("THROUGH"));
    long (*const growth)(int) = FUNCTION(long (*)(int), dlsym(library, "through_managed"));
    FUNCTION(CUresult (*)(void), dlsym(library, "through_begin"))();
    growth(600);
    printf("%d\n", growth(3000) > 100);
    return 0;
}

int main(int count, char** words) {
    const char* act = count > 1 ? words[1] : "";
    if (!strcmp(act, "next")) return next();
    if (!strcmp(act, "itself")) return itself();
    if (!strcmp(act, "spaces")) return spaces(words[2]);
    if (!strcmp(act, "forks")) return forks();
    if (!strcmp(act, "grows")) return grows();
    return 2;
}
