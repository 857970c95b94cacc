/* Opens a library for itself alone, in a thread with a small stack.
     narrow FILE KIB        prints whether it could */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void* opened(void* file) { return dlopen(file, RTLD_NOW | RTLD_DEEPBIND); }

int main(int count, char** words) {
    pthread_t thread;
    pthread_attr_t narrow;
    void* handle = NULL;
    if (count < 3 || pthread_attr_init(&narrow) != 0) return 2;
    if (pthread_attr_setstacksize(&narrow, (size_t)atoi(words[2]) << 10) != 0) return 3;
    if (pthread_create(&thread, &narrow, opened, words[1]) != 0) return 4;
    pthread_join(thread, &handle);
    puts(handle != NULL ? "opened" : dlerror());
    return 0;
}
