/* A driver in the process, behind the library: RM's objects, of which each goes with its parent. */
#include "rm.h"

#include <stdarg.h>
#include <stddef.h>

enum { kObjects = 4096 };
static const uint64_t kCard = (uint64_t)64 << 20, kPage = (uint64_t)2 << 20;

struct Object {
    uint32_t client, object, parent;
    uint64_t size;
};

static struct Object objects[kObjects];
static int count;
static uint32_t clients;

uint64_t driver_used(void);
void driver_lose(uint32_t client, uint32_t object);

uint64_t driver_used(void) {
    uint64_t used = 0;
    for (int index = 0; index < count; ++index) used += objects[index].size;
    return used;
}

static struct Object* find(uint32_t client, uint32_t object) {
    for (int index = 0; index < count; ++index) {
        if (objects[index].client == client && objects[index].object == object) return &objects[index];
    }
    return NULL;
}

/* Frees it and all below, and nobody sees a request for it. */
void driver_lose(uint32_t client, uint32_t object) {
    for (int index = 0; index < count; ++index) {
        if (objects[index].client != client || objects[index].parent != object) continue;
        driver_lose(client, objects[index].object);
        index = -1;
    }
    struct Object* lost = find(client, object);
    if (lost != NULL) *lost = objects[--count];
}

static void make(struct Alloc* wanted) {
    uint64_t size = 0;
    wanted->status = 0;
    if (wanted->kind == kClient) wanted->client = wanted->object = 0xC1D00001 + clients++;
    if (find(wanted->client, wanted->object) != NULL) wanted->status = kInUse;
    if (wanted->kind != kClient && find(wanted->client, wanted->parent) == NULL) wanted->status = kUnknown;
    if (wanted->kind == kMemory) {
        struct Memory* memory = wanted->parameters;
        size = memory->size = (memory->size + kPage - 1) / kPage * kPage;
        if (driver_used() + size > kCard) wanted->status = kNoMemory;
    }
    if (wanted->status == 0 && count < kObjects) {
        objects[count++] = (struct Object){wanted->client, wanted->object, wanted->parent, size};
    }
}

static void give_back(struct Free* wanted) {
    wanted->status = find(wanted->client, wanted->object) == NULL ? kUnknown : 0;
    driver_lose(wanted->client, wanted->object);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    void* argument = va_arg(arguments, void*);
    va_end(arguments);
    (void)fd;
    if (request == ALLOC || request == GROWN) make(argument);
    if (request == FREE) give_back(argument);
    return request == ALLOC || request == GROWN || request == FREE ? 0 : -1;
}
