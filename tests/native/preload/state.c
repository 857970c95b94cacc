#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

static void print_signals(void) {
    sigset_t blocked, pending;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    sigpending(&pending);
    for (int number = 1; number < NSIG; ++number) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) != 0) continue;
        printf("signal %d %d %d %p %#x\n", number, sigismember(&blocked, number), sigismember(&pending, number),
               (void*)(size_t)action.sa_handler, (unsigned)action.sa_flags);
    }
    stack_t stack;
    sigaltstack(NULL, &stack);
    printf("altstack %d\n", stack.ss_flags);
    for (int which = ITIMER_REAL; which <= ITIMER_PROF; ++which) {
        struct itimerval timer;
        getitimer(which, &timer);
        printf("timer %ld %ld\n", (long)timer.it_value.tv_sec, (long)timer.it_interval.tv_usec);
    }
}

static int by_text(const void* one, const void* other) { return strcmp(*(char* const*)one, *(char* const*)other); }

/* Without what chose the library, and what it says to its children. */
static void print_environment(void) {
    static const char* const kOurs[] = {"LD_PRELOAD=", "RUNLIST_", "CUDA_DEVICE_", "LIBCUDA_"};
    size_t count = 0;
    while (environ[count] != NULL) ++count;
    char** sorted = calloc(count, sizeof(*sorted));
    memcpy(sorted, environ, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), by_text);
    for (size_t index = 0; index < count; ++index) {
        bool ours = false;
        for (size_t one = 0; one < sizeof(kOurs) / sizeof(*kOurs); ++one)
            ours |= strncmp(sorted[index], kOurs[one], strlen(kOurs[one])) == 0;
        if (!ours) printf("environment %s\n", sorted[index]);
    }
    free(sorted);
}

static void print_limits(void) {
    for (int which = 0; which < RLIM_NLIMITS; ++which) {
        struct rlimit limit;
        getrlimit(which, &limit);
        printf("limit %d %llu %llu\n", which, (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
    }
}

static void print_streams(void) {
    for (int fd = 0; fd < 3; ++fd) {
        struct stat found;
        const bool open = fstat(fd, &found) == 0;
        printf("stream %d %d %#x %d\n", fd, open, open ? found.st_mode & S_IFMT : 0, fcntl(fd, F_GETFL));
    }
}

static int threads(void) {
    int count = 0;
    DIR* tasks = opendir("/proc/self/task");
    while (tasks != NULL && readdir(tasks) != NULL) ++count;
    if (tasks != NULL) closedir(tasks);
    return count - 2;
}

void print_state(void) {
    char name[17] = "", folder[4096] = "";
    const mode_t mask = umask(0);
    umask(mask);
    prctl(PR_GET_NAME, name);
    printf("umask %#o\n", (unsigned)mask);
    printf("locale %s\n", setlocale(LC_ALL, NULL));
    printf("folder %s\n", getcwd(folder, sizeof(folder)));
    printf("name %s dumpable %d nice %d\n", name, prctl(PR_GET_DUMPABLE), getpriority(PRIO_PROCESS, 0));
    printf("users %d %d groups %d %d session %d\n", (int)getuid(), (int)geteuid(), (int)getgid(), (int)getegid(),
           getsid(0) == getpid());
    printf("threads %d children %d\n", threads(), waitpid(-1, NULL, WNOHANG));
    print_streams();
    print_limits();
    print_environment();
    print_signals();
}
