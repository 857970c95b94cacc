/* What the driver's library asks of RM for device memory: takes each of the sizes in bytes that its words are, and
   prints for each request the page size that it names, what it asks for, and what that became. */
#include <dlfcn.h>
#include <stdarg.h>

#include "guest.h"
#include "rm.h"

int runlist_emulated_ioctl(int descriptor, unsigned long request, void* argument);

static bool printing;

static void look(unsigned long request, const struct Alloc* alloc, uint64_t asked) {
    static const unsigned kPages[] = {0, 4, 64, 2048};
    if (!printing || request != ALLOC || alloc->kind != kMemory) return;
    const struct Memory* memory = alloc->parameters;
    const unsigned attributes = memory->to_size[3];
    printf("%u %llu %llu\n", kPages[attributes >> 23 & 3], (unsigned long long)asked, (unsigned long long)memory->size);
}

static uint64_t size_of(unsigned long request, const struct Alloc* alloc) {
    return request == ALLOC && alloc->kind == kMemory ? ((const struct Memory*)alloc->parameters)->size : 0;
}

/* The program's own come before those of all libraries. */
int runlist_emulated_ioctl(int descriptor, unsigned long request, void* argument) {
    int (*real)(int, unsigned long, void*);
    *(void**)&real = dlsym(RTLD_NEXT, "runlist_emulated_ioctl");
    const uint64_t asked = size_of(request, argument);
    const int result = real(descriptor, request, argument);
    look(request, argument, asked);
    return result;
}

int ioctl(int descriptor, unsigned long request, ...) {
    va_list more;
    va_start(more, request);
    void* argument = va_arg(more, void*);
    va_end(more);
    int (*real)(int, unsigned long, ...);
    *(void**)&real = dlsym(RTLD_NEXT, "ioctl");
    const uint64_t asked = size_of(request, argument);
    const int result = real(descriptor, request, argument);
    look(request, argument, asked);
    return result;
}

int main(int count, char** words) {
    begin();
    printing = true;
    for (int index = 1; index < count; ++index) {
        CUdeviceptr address;
        MUST(cuMemAlloc(&address, strtoull(words[index], NULL, 10)));
    }
    return 0;
}
