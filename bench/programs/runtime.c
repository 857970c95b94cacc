/*
 * What a program of the CUDA runtime sees of a memory limit: `runtime BYTES` tries to take so much by each function.
 *
 * The runtime's own header needs others that its wheel does not have, so the few functions are declared here; they are
 * the same in CUDA 12 and 13. PROPERTIES is the name that cudaGetDeviceProperties has in the runtime's library.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

struct format {
    int x, y, z, w, kind;
};

struct properties {
    char name[256], uuid[16], luid[8];
    unsigned node_mask;
    size_t total;
    char rest[4096];
};

int cudaRuntimeGetVersion(int* version);
int cudaMemGetInfo(size_t* unused, size_t* total);
int PROPERTIES(struct properties* properties, int device);
int cudaMalloc(void** memory, size_t bytes);
int cudaMallocManaged(void** memory, size_t bytes, unsigned flags);
int cudaMallocAsync(void** memory, size_t bytes, void* stream);
int cudaMallocArray(void** array, const struct format* format, size_t width, size_t height, unsigned flags);
int cudaMemset(void* memory, int value, size_t bytes);
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind);
int cudaFree(void* memory);
int cudaGetLastError(void);

static void report(const char* name, int result) { printf("%s %d\n", name, result); }

int main(int count, char** words) {
    const size_t bytes = count > 1 ? strtoull(words[1], NULL, 0) : 1;
    static struct properties properties;
    const struct format floats = {32, 0, 0, 0, 2};
    size_t unused = 0, total = 0;
    unsigned char back = 0;
    int version = 0;
    void* memory = NULL;

    cudaRuntimeGetVersion(&version);
    report("version", version);
    report("cudaMemGetInfo", cudaMemGetInfo(&unused, &total));
    printf("total %zu\n", total);
    PROPERTIES(&properties, 0);
    printf("properties %zu\n", properties.total);

    report("cudaMalloc", cudaMalloc(&memory, bytes));
    report("cudaMallocManaged", cudaMallocManaged(&memory, bytes, 1));
    report("cudaMallocAsync", cudaMallocAsync(&memory, bytes, NULL));
    report("cudaMallocArray", cudaMallocArray(&memory, &floats, 16384, bytes / 4 / 16384, 0));
    cudaGetLastError();

    /* What fits still works. */
    report("small cudaMalloc", cudaMalloc(&memory, 1 << 20));
    report("cudaMemset", cudaMemset(memory, 7, 1 << 20));
    report("cudaMemcpy", cudaMemcpy(&back, memory, 1, 2));
    report("byte", back);
    report("cudaFree", cudaFree(memory));
    return 0;
}
