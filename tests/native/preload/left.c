/* Waits in a thread that does not come back: `left cancel` or `left exit`, the latter in a signal handler. Goes on by
   lines of its input: from waiting to leaving, and from there to the end. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static int (*cu_stream_synchronize)(void* stream);

static void leave(int number) {
    (void)number;
    pthread_exit(NULL);
}

static void* waits(void* unused) {
    (void)unused;
    return cu_stream_synchronize(NULL) == 0 ? "" : NULL;
}

static void say(const char* word) {
    puts(word);
    fflush(stdout);
    getchar();
}

int main(int count, char** words) {
    pthread_t thread;
    void *result, *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (count < 2 || cuda == NULL) return 2;
    *(void**)&cu_stream_synchronize = dlsym(cuda, "cuStreamSynchronize");
    signal(SIGUSR1, leave);
    if (pthread_create(&thread, NULL, waits, NULL) != 0) return 3;
    say("waits");
    if (strcmp(words[1], "cancel") != 0 ? pthread_kill(thread, SIGUSR1) : pthread_cancel(thread)) return 4;
    if (pthread_join(thread, &result) != 0) return 5;
    say(result == PTHREAD_CANCELED ? "cancel" : result == NULL ? "exit" : "returned");
    return 0;
}
