/* A library that keeps the driver's functions in variables of their names, as cuew does. */
#include <dlfcn.h>
#include <stdio.h>

int (*cuInit)(unsigned flags);
int (*cuDeviceGetCount)(int* count);

int use_variables(void) {
    int count = -1;
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    *(void**)&cuInit = dlsym(driver, "cuInit");
    *(void**)&cuDeviceGetCount = dlsym(driver, "cuDeviceGetCount");
    if (cuInit == NULL || cuInit(0) != 0 || cuDeviceGetCount(&count) != 0) return -1;
    return count;
}
