/* A program without CUDA, for which a preloaded library is to make no difference.
     manners state CODE     prints what it finds in main, and exits with CODE
     manners quiet          prints and opens nothing
     manners streams FILE   started without standard streams: writes which of their numbers are taken
     manners deep           handles the overflow of its stack on another stack
     manners killed         ends by a signal
     manners exec           becomes `true`
     manners twice          runs `manners state 0` by system, popen, posix_spawn and vfork */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "state.h"

extern char** environ;

static int errno_at_start;

__attribute__((constructor)) static void before_main(void) { errno_at_start = errno; }

static int streams(const char* name) {
    int taken[3];
    for (int fd = 0; fd < 3; ++fd) taken[fd] = fcntl(fd, F_GETFD) >= 0;
    FILE* file = fopen(name, "w");
    fprintf(file, "%d %d %d\n", taken[0], taken[1], taken[2]);
    return fclose(file);
}

static sigjmp_buf back;

static void on_fault(int number) { siglongjmp(back, number); }

static volatile int depth;

__attribute__((noinline)) static int deeper(volatile char* above) {
    volatile char here[4096];
    here[0] = above[0];
    return ++depth < 0 ? 0 : deeper(here) + here[0];
}

static int overflow(void) {
    static char room[65536];
    const stack_t other = {.ss_sp = room, .ss_size = sizeof(room)};
    const struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK};
    char byte = 1;
    sigaltstack(&other, NULL);
    sigaction(SIGSEGV, &action, NULL);
    const int number = sigsetjmp(back, 1);
    if (number == 0) return deeper(&byte);
    printf("fault %d\n", number);
    return 0;
}

static int twice(const char* program) {
    char command[4096], line[4096];
    char* words[] = {(char*)program, "state", "0", NULL};
    pid_t child;
    int status, lines = 0;
    snprintf(command, sizeof(command), "'%s' state 3", program);
    fflush(stdout);
    printf("system %d\n", WEXITSTATUS(system(command)));
    FILE* pipe = popen(command, "r");
    while (fgets(line, sizeof(line), pipe) != NULL) ++lines;
    printf("popen %d %d\n", lines, WEXITSTATUS(pclose(pipe)));
    fflush(stdout);
    status = posix_spawn(&child, program, NULL, NULL, words, environ);
    printf("spawn %d %d\n", status, (int)(waitpid(child, &status, 0) == child && status == 0));
    fflush(stdout);
    child = vfork();
    if (child == 0) {
        execve(program, words, environ);
        _exit(9);
    }
    printf("vfork %d\n", (int)(waitpid(child, &status, 0) == child && status == 0));
    return 0;
}

int main(int count, char** words) {
    const char* act = count > 1 ? words[1] : "quiet";
    if (!strcmp(act, "quiet")) return 0;
    if (!strcmp(act, "streams")) return streams(words[2]);
    if (!strcmp(act, "deep")) return overflow();
    if (!strcmp(act, "killed")) return raise(SIGTERM);
    if (!strcmp(act, "twice")) return twice(words[0]);
    if (!strcmp(act, "exec")) return execlp("true", "true", (char*)NULL);
    printf("errno %d\n", errno_at_start);
    print_state();
    return count > 2 ? atoi(words[2]) : 0;
}
