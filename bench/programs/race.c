/*
 * Allocates and frees at random, as fast as it can, until told to stop: `race LEDGER INDEX MIB PTX`, none larger than
 * MIB MiB.
 *
 * LEDGER is a file that all such programs map; each counts in it what it holds just after an allocation and just before
 * a free, so the sum is never above the truth, and whenever the truth is above the limit for as long as two calls take,
 * the largest sum shows it. Only sizes are counted that the driver does not round up.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

enum { PROGRAMS = 128, HELD = 256, GRAIN = 2 << 20, SMALLEST = 256 };

struct program {
    _Atomic uint64_t ready, taken, refused, launches, unexpected;
    uint64_t reserved[3];
};

struct ledger {
    _Atomic uint64_t go, stop, sum, largest;
    uint64_t reserved[4];
    struct program program[PROGRAMS];
};

enum kind { SYNC, ASYNC, CREATED, KINDS };

struct holding {
    address memory;
    uint64_t counted;
    enum kind kind;
};

static struct cuda cuda;
static struct ledger* ledger;
static struct program* self;
static struct holding held[HELD];
static int holdings;
static void* stream;
static uint64_t state;

static uint64_t next_random(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void count(uint64_t bytes) {
    const uint64_t sum = atomic_fetch_add(&ledger->sum, bytes) + bytes;
    uint64_t largest = atomic_load(&ledger->largest);
    while (sum > largest && !atomic_compare_exchange_weak(&ledger->largest, &largest, sum)) continue;
}

static void let_go(int index) {
    const struct holding holding = held[index];
    held[index] = held[--holdings];
    atomic_fetch_sub(&ledger->sum, holding.counted);
    const int code = holding.kind == SYNC    ? cuda.cuMemFree(holding.memory)
                     : holding.kind == ASYNC ? cuda.cuMemFreeAsync(holding.memory, stream)
                                             : cuda.cuMemRelease(holding.memory);
    if (code) atomic_fetch_add(&self->unexpected, 1);
}

/* As many bytes as a power of two times one to two: each order of magnitude is as likely as the next. */
static uint64_t random_size(uint64_t largest) {
    uint64_t size = SMALLEST;
    for (int doublings = next_random() % 64; doublings > 0; --doublings)
        size = size * 2 <= largest ? size * 2 : SMALLEST;
    size += next_random() % size;
    if (size > largest) size = largest;
    return size < GRAIN ? size : size / GRAIN * GRAIN;
}

static void take(uint64_t largest) {
    static const struct properties kOnDevice = {.type = 1, .location_type = 1};
    const uint64_t bytes = random_size(largest);
    struct holding taken = {.counted = bytes >= GRAIN ? bytes : 0, .kind = next_random() % KINDS};
    if (taken.kind == ASYNC && !cuda.cuMemAllocAsync) taken.kind = SYNC;
    if (taken.kind == CREATED && (!cuda.cuMemCreate || !taken.counted)) taken.kind = SYNC;
    const int code = taken.kind == SYNC    ? cuda.cuMemAlloc(&taken.memory, bytes)
                     : taken.kind == ASYNC ? cuda.cuMemAllocAsync(&taken.memory, bytes, stream)
                                           : cuda.cuMemCreate(&taken.memory, bytes, &kOnDevice, 0);
    if (code == CUDA_SUCCESS) {
        count(taken.counted);
        held[holdings++] = taken;
        atomic_fetch_add(&self->taken, 1);
    } else if (code == CUDA_ERROR_OUT_OF_MEMORY) {
        atomic_fetch_add(&self->refused, 1);
        for (int i = holdings / 4 + 1; i > 0 && holdings; --i) let_go(next_random() % holdings);
    } else {
        atomic_fetch_add(&self->unexpected, 1);
    }
}

int main(int words, char** word) {
    if (words != 5) fail("usage: race LEDGER INDEX MIB PTX", 2);
    const int file = open(word[1], O_RDWR | O_CLOEXEC);
    if (file < 0) fail(word[1], 1);
    ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (ledger == MAP_FAILED) fail("mmap", 1);
    self = &ledger->program[atoi(word[2]) % PROGRAMS];
    state = 0x9E3779B97F4A7C15u * (uint64_t)(getpid() + 1);
    cuda = by_dlsym(driver_library());
    enter(&cuda);
    CHECK(cuda.cuStreamCreate(&stream, STREAM_NON_BLOCKING));
    void* kernel = load_kernel(&cuda, word[4]);
    CHECK(launch_empty(&cuda, kernel, stream));
    CHECK(cuda.cuStreamSynchronize(stream));
    atomic_store(&self->ready, 1);
    while (!atomic_load(&ledger->go)) usleep(500);
    const uint64_t largest = strtoull(word[3], NULL, 0) << 20;
    while (!atomic_load(&ledger->stop)) {
        const uint64_t what = next_random() % 16;
        if (what == 0) {
            if (launch_empty(&cuda, kernel, stream)) atomic_fetch_add(&self->unexpected, 1);
            atomic_fetch_add(&self->launches, 1);
        } else if (holdings && (what < 6 || holdings == HELD)) {
            let_go(next_random() % holdings);
        } else {
            take(largest);
        }
    }
    while (holdings) let_go(holdings - 1);
    CHECK(cuda.cuStreamSynchronize(stream));
    return 0;
}
