/* Uses what there is of a libcuda that lacks most. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    static const char* const kNames[] = {"cuInit",
                                         "cuMemGetInfo_v2",
                                         "cuMemAlloc_v2",
                                         "cuLaunchKernel",
                                         "cuMemAllocManaged",
                                         "cuDeviceTotalMem_v2",
                                         "cuGetProcAddress_v2"};
    void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
    printf("here %d\n", cuda != NULL);
    if (cuda == NULL) return 0;
    for (size_t index = 0; index < sizeof(kNames) / sizeof(*kNames); ++index)
        printf("%s %d\n", kNames[index], dlsym(cuda, kNames[index]) != NULL);
    size_t free = 0, total = 0;
    void* function = dlsym(cuda, "cuInit");
    printf("cuInit %d\n", (*(int (**)(unsigned))&function)(0));
    function = dlsym(cuda, "cuMemGetInfo_v2");
    printf("cuMemGetInfo %d %zu\n", (*(int (**)(size_t*, size_t*))&function)(&free, &total), free);
    return 0;
}
