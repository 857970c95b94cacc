/* Takes the same function by every route that a program has, and prints what it answers: `ROUTE TOTAL`, where TOTAL is
   the memory that the GPU is said to have. Built twice: linked with libcuda, and (UNLINKED) opening it. */
#include <dlfcn.h>

#include "guest.h"

typedef CUresult (*Query)(size_t*, size_t*);
typedef CUresult (*Begin)(void);
typedef CUresult (*GetAddress1)(const char*, void**, int, cuuint64_t);
typedef CUresult (*GetAddress2)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
typedef void* (*Dlsym)(void*, const char*);

static const char kCuda[] = "libcuda.so.1";
static const int kVersions[] = {3020, 11030, 11080, 12000, 12080, 13000};

/* A function as the pointer that a look-up gave. */
#define FUNCTION(type, pointer) (*(__typeof__(type)*)(void*[]){(pointer)})

static void see(const char* route, void* function) {
    size_t free = 0, total = 0;
    if (function == NULL) {
        printf("%s missing\n", route);
    } else {
        const int result = (int)FUNCTION(Query, function)(&free, &total);
        result == 0 ? printf("%s %zu\n", route, total) : printf("%s error-%d\n", route, result);
    }
}

/* By name, in an object that was opened. */
static void by_name(void* handle, const char* where) {
    char route[96];
    snprintf(route, sizeof(route), "dlsym-%s", where);
    see(route, dlsym(handle, "cuMemGetInfo_v2"));
    snprintf(route, sizeof(route), "dlvsym-%s", where);
    see(route, dlvsym(handle, "cuMemGetInfo_v2", "libcuda.so.1"));
}

/* By the driver's own look-up, whose forms are themselves found in several ways. */
static void by_driver(void* handle, const char* where) {
    char route[96];
    void* function = NULL;
    void* nested = NULL;
    void* first = dlsym(handle, "cuGetProcAddress");
    void* second = dlsym(handle, "cuGetProcAddress_v2");
    for (size_t index = 0; index < sizeof(kVersions) / sizeof(*kVersions); ++index) {
        for (unsigned flags = 0; flags < 3; ++flags) {
            const int version = kVersions[index];
            CUdriverProcAddressQueryResult status;
            if (first != NULL && FUNCTION(GetAddress1, first)("cuMemGetInfo", &function, version, flags) == 0) {
                snprintf(route, sizeof(route), "address1-%s-%d-%u", where, version, flags);
                see(route, function);
            }
            if (second == NULL) continue;
            snprintf(route, sizeof(route), "address2-%s-%d-%u", where, version, flags);
            if (FUNCTION(GetAddress2, second)("cuMemGetInfo", &function, version, flags, NULL) == 0)
                see(route, function);
            snprintf(route, sizeof(route), "address3-%s-%d-%u", where, version, flags);
            if (FUNCTION(GetAddress2, second)("cuGetProcAddress", &nested, version, flags, &status) != 0 ||
                nested == NULL || version < 12000) {
                continue;
            }
            if (FUNCTION(GetAddress2, nested)("cuMemGetInfo", &function, version, flags, &status) == 0 &&
                status == CU_GET_PROC_ADDRESS_SUCCESS) {
                see(route, function);
            }
        }
    }
}

/* Through another shared library that is linked with libcuda. */
static void by_library(const char* route, void* library) {
    if (library == NULL) {
        printf("%s missing %s\n", route, dlerror());
        return;
    }
    MUST(FUNCTION(Begin, dlsym(library, "through_begin"))());
    see(route, dlsym(library, "through_query"));
}

/* A current context, in a program that is not linked with libcuda. */
static void start(void* cuda) {
    CUcontext context;
    MUST(FUNCTION(CUresult (*)(unsigned), dlsym(cuda, "cuInit"))(0));
    MUST(FUNCTION(CUresult (*)(CUcontext*, CUdevice), dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0));
    MUST(FUNCTION(CUresult (*)(CUcontext), dlsym(cuda, "cuCtxSetCurrent"))(context));
}

static int everywhere(void* cuda) {
    start(cuda);
    by_name(cuda, "handle");
    by_name(RTLD_DEFAULT, "default");
    see("dlsym-own", FUNCTION(Dlsym, dlsym(RTLD_DEFAULT, "dlsym"))(cuda, "cuMemGetInfo_v2"));
    see("dlvsym-own", FUNCTION(Dlsym, dlvsym(RTLD_DEFAULT, "dlsym", DLSYM_VERSION))(cuda, "cuMemGetInfo_v2"));
    by_driver(cuda, "handle");
    by_driver(RTLD_DEFAULT, "default");
    by_library("local", dlopen(getenv("THROUGH"), RTLD_NOW | RTLD_LOCAL));
    by_library("lazy", dlopen(getenv("THROUGH"), RTLD_LAZY | RTLD_GLOBAL));
    void* counts = dlsym(RTLD_DEFAULT, "interposed");
    for (int which = 0; counts != NULL && which < 4; ++which)
        printf("interposed-%d %d\n", which, FUNCTION(int (*)(int), counts)(which) > 0);
    return 0;
}

#ifdef UNLINKED

/* More than all there is, by a function that gives it back at once. */
static void over(const char* route, CUresult (*alloc)(size_t)) {
    size_t limit = strtoull(getenv("LIMIT"), NULL, 0);
    printf("%s %d\n", route, (int)alloc(limit + kMiB));
}

/* `absent`: what is found in a process without libcuda. */
static int without(void) {
    printf("%d\n", dlsym(RTLD_DEFAULT, "cuMemGetInfo_v2") != NULL);
    printf("%d\n", dlopen(kCuda, RTLD_NOW | RTLD_NOLOAD) != NULL);
    return 0;
}

/* `again`: libcuda is opened, used and closed many times. */
static int again(void) {
    for (int round = 0; round < 10; ++round) {
        void* library = dlopen(getenv("THROUGH"), RTLD_NOW | RTLD_LOCAL);
        by_library("again", library);
        over("over-again", FUNCTION(CUresult (*)(size_t), dlsym(library, "through_alloc")));
        dlclose(library);
    }
    return 0;
}

/* `space`: a library in a namespace of its own, where nothing is preloaded. */
static int aside(void* library) {
    by_library("aside", library);
    over("over-aside", FUNCTION(CUresult (*)(size_t), dlsym(library, "through_alloc")));
    return 0;
}

/* What the driver says of memory, and to a request for more than there is. */
static int ask(void* cuda, const char* route) {
    CUdeviceptr address;
    CUresult (*const alloc)(CUdeviceptr*, size_t) =
        FUNCTION(CUresult (*)(CUdeviceptr*, size_t), dlsym(cuda, "cuMemAlloc_v2"));
    see(route, dlsym(cuda, "cuMemGetInfo_v2"));
    printf("over-%s %d\n", route, (int)alloc(&address, strtoull(getenv("LIMIT"), NULL, 0) + kMiB));
    return 0;
}

/* `deep`: a libcuda whose own look-ups begin in it, and pass by what is preloaded. */
static int deep(void* cuda) {
    start(cuda);
    return ask(cuda, "aside");
}

static size_t in_use(void* cuda) {
    size_t free = 0, total = 0;
    MUST(FUNCTION(Query, dlsym(cuda, "cuMemGetInfo_v2"))(&free, &total));
    return total - free;
}

/* Makes the primary context of a GPU current, as `get` names it. That does not make it: what is done in it fails (709),
   until somebody retains it in the usual way. */
static void begin_by(void* cuda, CUdevice device, CUresult (*get)(CUcontext*, CUdevice)) {
    CUcontext named, retained;
    unsigned flags = 0;
    int active = 0;
    size_t free = 0, total = 0;
    CUresult (*const set)(CUcontext) = FUNCTION(CUresult (*)(CUcontext), dlsym(cuda, "cuCtxSetCurrent"));
    MUST(get(&named, device));
    MUST(FUNCTION(CUresult (*)(CUdevice, unsigned*, int*), dlsym(cuda, "cuDevicePrimaryCtxGetState"))(device, &flags,
                                                                                                      &active));
    MUST(active);
    const CUresult early = set(named);
    MUST((early ? early : FUNCTION(Query, dlsym(cuda, "cuMemGetInfo_v2"))(&free, &total)) !=
         CUDA_ERROR_CONTEXT_IS_DESTROYED);
    MUST(FUNCTION(CUresult (*)(CUcontext*, CUdevice), dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&retained, device));
    MUST(retained != named);
    MUST(set(named));
}

/* `table`: a GPU's primary context by the table through which NVIDIA's runtime gets it, by the function at its place 2.
   Then what is in use: by the context, with memory of two kinds, and after a reset. Stays until a line comes. */
static int by_table(void* cuda, CUdevice device) {
    CUuuid id;
    const void* table;
    CUdeviceptr address;
    memcpy(id.bytes, "\x6B\xD5\xFB\x6C\x5B\xF4\xE7\x4A\x89\x87\xD9\x39\x12\xFD\x9D\xF9", sizeof(id.bytes));
    MUST(FUNCTION(CUresult (*)(unsigned), dlsym(cuda, "cuInit"))(0));
    MUST(FUNCTION(CUresult (*)(const void**, const CUuuid*), dlsym(cuda, "cuGetExportTable"))(&table, &id));
    CUresult (*const get)(CUcontext*, CUdevice) =
        FUNCTION(CUresult (*)(CUcontext*, CUdevice), ((void* const*)table)[2]);
    begin_by(cuda, device, get);
    ask(cuda, "table");
    printf("%zu\n", in_use(cuda));
    MUST(FUNCTION(CUresult (*)(CUdeviceptr*, size_t), dlsym(cuda, "cuMemAlloc_v2"))(&address, 8 * kMiB));
    MUST(FUNCTION(CUresult (*)(CUdeviceptr*, size_t, unsigned), dlsym(cuda, "cuMemAllocManaged"))(
        &address, 16 * kMiB, CU_MEM_ATTACH_GLOBAL));
    printf("%zu\n", in_use(cuda));
    MUST(FUNCTION(CUresult (*)(CUdevice), dlsym(cuda, "cuDevicePrimaryCtxReset_v2"))(device));
    begin_by(cuda, device, get);
    printf("%zu\n", in_use(cuda));
    fflush(stdout);
    getchar();
    return 0;
}

int main(int count, char** words) {
    const char* act = count > 1 ? words[1] : "";
    if (!strcmp(act, "absent")) return without();
    if (!strcmp(act, "again")) return again();
    if (!strcmp(act, "space")) return aside(dlmopen(LM_ID_NEWLM, getenv("THROUGH"), RTLD_NOW));
    if (!strcmp(act, "table")) return by_table(dlopen(kCuda, RTLD_NOW), count > 2 ? atoi(words[2]) : 0);
    if (!strcmp(act, "deep")) return deep(dlopen(kCuda, RTLD_NOW | RTLD_DEEPBIND));
    void* cuda = dlopen(kCuda, RTLD_NOW | RTLD_GLOBAL);
    return cuda == NULL ? 3 : everywhere(cuda);
}

#else

int main(void) {
    size_t free = 0, total = 0;
    const Query query = cuMemGetInfo;
    begin();
    MUST(cuMemGetInfo(&free, &total));
    printf("linked %zu\n", total);
    see("address", *(void* const*)&query);
    return everywhere(dlopen(kCuda, RTLD_NOW));
}

#endif
