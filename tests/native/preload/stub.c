/* A libcuda.so.1 with hardly anything in it. */
#include <stddef.h>

int cuInit(unsigned flags);
int cuMemGetInfo_v2(size_t* free, size_t* total);

int cuInit(unsigned flags) { return flags != 0; }

int cuMemGetInfo_v2(size_t* free, size_t* total) {
    *free = 1000;
    *total = 2000;
    return 0;
}
