/* A libcuda.so.1 that takes no refusal at once: it asks the driver again, or one of its functions calls another one. */
#include <stddef.h>

#include "rm.h"

enum { kOutOfMemory = 2, kOwn = 1 };

typedef uint64_t Address;

int cuInit(unsigned flags);
int cuMemAlloc_v2(Address* address, size_t bytes);
int cuMemAllocPitch_v2(Address* address, size_t* pitch, size_t width, size_t height, unsigned element);
int cuMemAllocAsync(Address* address, size_t bytes, void* stream);
int cuMemAllocFromPoolAsync(Address* address, size_t bytes, void* pool, void* stream);
int cuCtxSynchronize(void);

static uint32_t client, last = kOwn;

static uint32_t ask(uint32_t parent, uint32_t object, uint32_t kind, void* parameters) {
    struct Alloc wanted = {
        .client = client, .parent = parent, .object = object, .kind = kind, .parameters = parameters};
    ioctl(0, ALLOC, &wanted);
    if (kind == kClient) client = wanted.object;
    return wanted.status;
}

static int take(Address* address, size_t bytes) {
    struct Memory memory = {.size = bytes};
    *address = ++last;
    return ask(kOwn, last, kMemory, &memory) == 0 ? 0 : kOutOfMemory;
}

int cuInit(unsigned flags) {
    uint64_t number = 0;
    return (int)(flags || ask(0, 0, kClient, NULL) || ask(client, kOwn, kDevice, &number));
}

/* Once more after a refusal, as NVIDIA's does. */
int cuMemAlloc_v2(Address* address, size_t bytes) { return take(address, bytes) == 0 ? 0 : take(address, bytes); }

/* In large pages, and if there is no room for these, in small ones. */
int cuMemAllocPitch_v2(Address* address, size_t* pitch, size_t width, size_t height, unsigned element) {
    *pitch = width;
    return take(address, element * 1024 * width * height) == 0 ? 0 : take(address, width * height);
}

/* By the function of that name, wherever that leads. */
int cuMemAllocAsync(Address* address, size_t bytes, void* stream) {
    (void)stream;
    return cuMemAlloc_v2(address, bytes);
}

int cuMemAllocFromPoolAsync(Address* address, size_t bytes, void* pool, void* stream) {
    (void)pool;
    return cuMemAllocAsync(address, bytes, stream) == 0 ? 0 : cuMemAlloc_v2(address, bytes);
}

/* What it takes for itself, of which nobody knows what for: twice more than there is. */
int cuCtxSynchronize(void) {
    Address address;
    return take(&address, (size_t)1 << 40) + take(&address, (size_t)1 << 40) == 0;
}
