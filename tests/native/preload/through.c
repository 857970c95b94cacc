/* A shared library that uses CUDA, as frameworks do: the program that loads it need not. */
#include "guest.h"

CUresult through_query(size_t* free, size_t* total);
CUresult through_begin(void);
CUresult through_alloc(size_t bytes);

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
