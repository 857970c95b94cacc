/* Another library that is preloaded and stands before the same functions, as tracers and memory checkers do. It counts
   and hands on to the next. */
#include <dlfcn.h>
#include <stdarg.h>

#include "guest.h"

extern void* __libc_malloc(size_t bytes);
int interposed(int which);

enum { kQuery, kIoctl, kDlsym, kMalloc, kKinds };
static int counts[kKinds];

static void count(int which) { __atomic_fetch_add(&counts[which], 1, __ATOMIC_RELAXED); }

int interposed(int which) { return __atomic_load_n(&counts[which], __ATOMIC_RELAXED); }

void* dlsym(void* handle, const char* name) {
    static void* (*next)(void*, const char*);
    if (next == NULL) *(void**)&next = dlvsym(RTLD_NEXT, "dlsym", DLSYM_VERSION);
    count(kDlsym);
    return next(handle, name);
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
    static CUresult (*next)(size_t*, size_t*);
    if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "cuMemGetInfo_v2");
    count(kQuery);
    return next(free, total);
}

int ioctl(int fd, unsigned long request, ...) {
    static int (*next)(int, unsigned long, ...);
    if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "ioctl");
    va_list arguments;
    va_start(arguments, request);
    void* argument = va_arg(arguments, void*);
    va_end(arguments);
    count(kIoctl);
    return next(fd, request, argument);
}

void* malloc(size_t bytes) {
    count(kMalloc);
    return __libc_malloc(bytes);
}
