/* A tenant that does what its input says, and prints what the library returned. C11, and C++ as well. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runlist.h"

enum { kRounds = 2000, kThreads = 8, kFirstDescriptor = 3, kDescriptors = 64 };

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static volatile sig_atomic_t interruptions;

static void on_alarm(int number) {
    (void)number;
    rl_report_latency_ns(3);
    interruptions = interruptions + 1;
}

static void* work(void* argument) {
    const int priority = (int)(intptr_t)argument;
    for (int round = 0; round < kRounds; ++round) {
        const int begun = rl_segment_begin(priority);
        if (begun == -EDEADLK || begun == -EBUSY || begun == -ENOSPC) continue;
        rl_report_latency_ns((uint64_t)round);
        rl_segment_end();
    }
    return NULL;
}

static int in_threads(void) {
    pthread_t threads[kThreads];
    for (int index = 0; index < kThreads; ++index)
        if (pthread_create(&threads[index], NULL, work, (void*)(intptr_t)(index + 1))) return -1;
    for (int index = 0; index < kThreads; ++index) pthread_join(threads[index], NULL);
    return 0;
}

/* Another thread, which is in a segment of its own until it is let go. */
static pthread_t other;
static sem_t has_begun, may_end;

static void* stay(void* argument) {
    rl_segment_begin((int)(intptr_t)argument);
    sem_post(&has_begun);
    sem_wait(&may_end);
    rl_segment_end();
    return NULL;
}

static int beside(int priority) {
    sem_init(&has_begun, 0, 0);
    sem_init(&may_end, 0, 0);
    if (pthread_create(&other, NULL, stay, (void*)(intptr_t)priority)) return -1;
    return sem_wait(&has_begun);
}

static int apart(void) {
    sem_post(&may_end);
    return pthread_join(other, NULL);
}

/* Reports under a timer whose handler reports, too. */
static int under_signals(void) {
    const struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round < kRounds || interruptions < 100; ++round) {
        rl_segment_begin(round);
        rl_segment_end();
    }
    setitimer(ITIMER_REAL, &never, NULL);
    return 0;
}

/* Closes every descriptor, as some programs do, and opens others in their place: bytes that these got, or -1. */
static long long behind_its_back(void) {
    int pair[2];
    char byte;
    long long stray = 0;
    for (int fd = kFirstDescriptor; fd < kDescriptors; ++fd) close(fd);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) return -1;
    for (int end = 0; end < 2; ++end) {
        rl_report_latency_ns(1);
        rl_segment_begin(5);
        rl_segment_end();
        while (read(pair[end], &byte, 1) == 1) ++stray;
    }
    return stray;
}

static int in_child(void) {
    const pid_t child = fork();
    if (child == 0) {
        const int ended = rl_segment_end(); /* its parent's segment is none of its own */
        const int begun = rl_segment_begin(40);
        _exit(ended == -EINVAL && begun == 0 && rl_segment_end() == 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

static long long cost_ns(int (*function)(uint64_t)) {
    const long long start = now_ns();
    for (int round = 0; round < kRounds; ++round) function(1);
    return (now_ns() - start) / kRounds;
}

int main(void) {
    char word[32];
    long long number;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (scanf("%31s %lld", word, &number) == 2) {
        long long result = -9999;
        errno = 77;
        if (!strcmp(word, "begin")) result = rl_segment_begin((int)number);
        if (!strcmp(word, "end")) result = rl_segment_end();
        if (!strcmp(word, "force")) result = rl_segment_in_force();
        if (!strcmp(word, "report")) result = rl_report_latency_ns((uint64_t)number);
        if (!strcmp(word, "hint")) result = rl_hint_ns((uint64_t)number);
        const int after = errno;
        if (!strcmp(word, "threads")) result = in_threads();
        if (!strcmp(word, "beside")) result = beside((int)number);
        if (!strcmp(word, "apart")) result = apart();
        if (!strcmp(word, "signals")) result = under_signals();
        if (!strcmp(word, "fork")) result = in_child();
        if (!strcmp(word, "cost")) result = cost_ns(rl_report_latency_ns);
        if (!strcmp(word, "timed")) {
            const long long start = now_ns();
            rl_segment_begin((int)number);
            result = now_ns() - start;
        }
        if (!strcmp(word, "closed")) result = behind_its_back();
        printf("%lld %d\n", result, after);
    }
    return 0;
}
