/* Two requests to RM, as the driver has them. */
#pragma once

#include <stdint.h>
#include <sys/ioctl.h>

enum { kClient = 0x41, kDevice = 0x80, kMemory = 0x40 };
enum { kNoMemory = 0x51, kInUse = 0x22, kUnknown = 0x57 };

struct Alloc {
    uint32_t client, parent, object, kind;
    void* parameters;
    void* rights;
    uint32_t bytes, flags, status, unused;
};

struct Free {
    uint32_t client, parent, object, status;
};

struct Memory {
    uint32_t to_flags[3];
    uint32_t to_size[13];
    uint64_t size, alignment, rest[4];
    uint32_t tail[4];
};

/* As a later driver may have it. */
struct Grown {
    struct Alloc alloc;
    uint64_t more[2];
};

#define ALLOC _IOWR('F', 0x2B, struct Alloc)
#define GROWN _IOWR('F', 0x2B, struct Grown)
#define FREE _IOWR('F', 0x29, struct Free)
