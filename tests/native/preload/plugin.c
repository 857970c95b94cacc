/* A plugin that is linked with libcuda and at work before it is called: its constructor takes more than LIMIT. */
#include "guest.h"

static int taken = -1;

__attribute__((constructor)) static void loaded(void) {
    CUdeviceptr address;
    begin();
    taken = (int)cuMemAlloc(&address, strtoull(getenv("LIMIT"), NULL, 0) + kMiB);
}

int plugin_taken(void);
CUresult plugin_query(size_t* free, size_t* total);
CUresult plugin_alloc(size_t bytes);

int plugin_taken(void) { return taken; }

CUresult plugin_query(size_t* free, size_t* total) { return cuMemGetInfo(free, total); }

CUresult plugin_alloc(size_t bytes) {
    CUdeviceptr address;
    return cuMemAlloc(&address, bytes);
}
