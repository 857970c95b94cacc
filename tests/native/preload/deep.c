/* Opens a plugin with RTLD_DEEPBIND, so that it finds the driver before anything that is preloaded.
     deep FILE WAY   WAY: now, lazy, or base (by dlmopen). Prints what its constructor got, the GPU's memory, and the
                     answer to more than LIMIT.
     deep herd       eight threads find the driver at the same moment; prints what the GPU's memory is to each */
#include <dlfcn.h>
#include <pthread.h>

#include "guest.h"

#define FUNCTION(type, pointer) (*(__typeof__(type)*)(void*[]){(pointer)})

static pthread_barrier_t together;
static void* cuda;
static size_t seen[8];

static void* look(void* place) {
    pthread_barrier_wait(&together);
    CUresult (*const total)(size_t*, CUdevice) =
        FUNCTION(CUresult (*)(size_t*, CUdevice), dlsym(cuda, "cuDeviceTotalMem_v2"));
    MUST(FUNCTION(CUresult (*)(unsigned), dlsym(cuda, "cuInit"))(0));
    MUST(total(place, 0));
    return NULL;
}

static int herd(void) {
    pthread_t threads[8];
    pthread_barrier_init(&together, NULL, 8);
    cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (cuda == NULL) return 3;
    for (int index = 0; index < 8; ++index) MUST(pthread_create(&threads[index], NULL, look, &seen[index]));
    for (int index = 0; index < 8; ++index) pthread_join(threads[index], NULL);
    for (int index = 0; index < 8; ++index) printf("%zu\n", seen[index]);
    return 0;
}

int main(int count, char** words) {
    size_t free = 0, total = 0;
    if (count < 3) return herd();
    const int mode = RTLD_DEEPBIND | (strcmp(words[2], "lazy") ? RTLD_NOW : RTLD_LAZY);
    void* plugin = strcmp(words[2], "base") ? dlopen(words[1], mode) : dlmopen(LM_ID_BASE, words[1], mode);
    if (plugin == NULL) must(1, dlerror());
    printf("constructor %d\n", FUNCTION(int (*)(void), dlsym(plugin, "plugin_taken"))());
    MUST(FUNCTION(CUresult (*)(size_t*, size_t*), dlsym(plugin, "plugin_query"))(&free, &total));
    printf("total %zu\n", total);
    printf("over %d\n", (int)FUNCTION(CUresult (*)(size_t), dlsym(plugin, "plugin_alloc"))(
                            strtoull(getenv("LIMIT"), NULL, 0) + kMiB));
    return 0;
}
