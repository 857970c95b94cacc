/* A shared library that uses CUDA, as frameworks do: the program that loads it need not. */
#include <dlfcn.h>

#include "guest.h"

CUresult through_query(size_t* free, size_t* total);
CUresult through_begin(void);
CUresult through_alloc(size_t bytes);
void* through_next(const char* name);
long through_managed(int rounds);

CUresult through_query(size_t* free, size_t* total) { return cuMemGetInfo(free, total); }

CUresult through_begin(void) {
    begin();
    return CUDA_SUCCESS;
}

CUresult through_alloc(size_t bytes) {
    CUdeviceptr address;
    const CUresult result = cuMemAlloc(&address, bytes);
    return result == CUDA_SUCCESS ? cuMemFree(address) : result;
}

void* through_next(const char* name) { return dlsym(RTLD_NEXT, name); }

/* KiB of memory of one's own. */
static long data(void) {
    char line[128];
    long found = 0;
    FILE* file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (!strncmp(line, "VmData:", 7)) found = strtol(line + 7, NULL, 10);
    }
    if (file != NULL) fclose(file);
    return found;
}

/* By how many KiB that grows while managed memory is made and freed. */
long through_managed(int rounds) {
    CUdeviceptr pieces[8] = {0};
    const long before = data();
    for (int round = 0; round < rounds; ++round) {
        CUdeviceptr* piece = &pieces[round % 8];
        if (*piece != 0) MUST(cuMemFree(*piece));
        MUST(cuMemAllocManaged(piece, 4096, CU_MEM_ATTACH_GLOBAL));
    }
    for (int index = 0; index < 8; ++index) MUST(cuMemFree(pieces[index]));
    return data() - before;
}
