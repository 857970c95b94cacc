/* Takes and gives memory as fast as it can, as one of many that share a limit.
     racer count PIECE ROUNDS     says `ready`, waits for the end of its input, then takes pieces until it is refused
   and gives them back, so many times; prints how many it got and how often it was refused racer loop PIECE FILE INDEX
   for ever, with the number of rounds so far in the INDEXth eight bytes of FILE racer fill BYTES             prints the
   code of taking so much racer threads PIECE ROUNDS   the same as `count`, in eight threads racer children PIECE takes
   a piece, then makes four children that take until they are refused; prints how many pieces all of them got, and how
   many there was room for once they had ended */
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.h"

enum { kMost = 4096, kThreads = 8, kChildren = 4 };

static size_t piece;
static int rounds;

static int take(CUdeviceptr* held) {
    int count = 0;
    for (; count < kMost; ++count) {
        const CUresult result = cuMemAlloc(&held[count], piece);
        if (result == CUDA_SUCCESS) continue;
        if (result != CUDA_ERROR_OUT_OF_MEMORY) must((int)result, "cuMemAlloc");
        return count;
    }
    return count;
}

static void give(const CUdeviceptr* held, int count) {
    for (int index = 0; index < count; ++index) MUST(cuMemFree(held[index]));
}

static void* race(void* context) {
    CUdeviceptr* held = calloc(kMost, sizeof(*held));
    intptr_t got = 0;
    MUST(cuCtxSetCurrent(context));
    for (int round = 0; round < rounds; ++round) {
        const int count = take(held);
        got += count;
        give(held, count);
    }
    free(held);
    return (void*)got;
}

static void ready(void) {
    char byte;
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) == 1) {
    }
}

static int in_threads(CUcontext context) {
    pthread_t threads[kThreads];
    intptr_t all = 0;
    for (int index = 0; index < kThreads; ++index) must(pthread_create(&threads[index], NULL, race, context), "thread");
    for (int index = 0; index < kThreads; ++index) {
        void* got;
        pthread_join(threads[index], &got);
        all += (intptr_t)got;
    }
    printf("%ld\n", (long)all);
    return 0;
}

static _Noreturn void loop(const char* name, int index) {
    const int file = open(name, O_RDWR);
    volatile uint64_t* counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CUdeviceptr held[4];
    for (uint64_t round = 0;; ++round) {
        int count = 0;
        while (count < 4 && cuMemAlloc(&held[count], piece * (1 + (round + count) % 3)) == CUDA_SUCCESS) ++count;
        give(held, count);
        counts[index] = round;
    }
}

/* Without CUDA before: children of fork may use it then. */
static int with_children(void) {
    int begun[2], go[2], ends[2], hold[2], pieces = 0;
    char byte = 0;
    if (pipe(begun) != 0 || pipe(go) != 0 || pipe(ends) != 0 || pipe(hold) != 0) return 1;
    for (int index = 0; index < kChildren; ++index) {
        if (fork() != 0) continue;
        static CUdeviceptr held[kMost];
        close(hold[1]);
        close(go[1]);
        begin();
        if (write(begun[1], &byte, 1) != 1) _exit(2);
        close(begun[1]);
        if (read(go[0], &byte, 1) != 0) _exit(2); /* until all have a context, or got none */
        const int got = take(held);
        if (write(ends[1], &got, sizeof(got)) != sizeof(got)) _exit(2);
        close(ends[1]);
        while (read(hold[0], &byte, 1) == 1) { /* keeps them until all are full */
        }
        _exit(0);
    }
    close(ends[1]);
    close(begun[1]);
    while (read(begun[0], &byte, 1) == 1) {
    }
    close(go[1]);
    /* One that has no room for its context ends without a word. */
    for (int got; read(ends[0], &got, sizeof(got)) == sizeof(got);) pieces += got;
    close(hold[1]);
    while (wait(NULL) > 0) {
    }
    static CUdeviceptr held[kMost];
    begin();
    printf("%d %d\n", pieces, take(held));
    return 0;
}

int main(int count, char** words) {
    if (count < 3) return 2;
    piece = strtoull(words[2], NULL, 0);
    rounds = count > 3 ? atoi(words[3]) : 0;
    if (!strcmp(words[1], "children")) return with_children();
    const CUcontext context = begin();
    if (!strcmp(words[1], "loop") && count > 4) loop(words[3], atoi(words[4]));
    if (!strcmp(words[1], "fill")) {
        CUdeviceptr address;
        printf("%d\n", (int)cuMemAlloc(&address, piece));
        return 0;
    }
    ready();
    if (!strcmp(words[1], "threads")) return in_threads(context);
    printf("%ld\n", (long)(intptr_t)race(context));
    return 0;
}
