/*
 * What allocating and freeing costs: `alloc CPU BATCHES LIVE...`, beside so many live allocations of 4 KiB (rising).
 *
 * Prints lines of "KIND BYTES LIVE NANOSECONDS", the time of an allocation and its free, one line a batch. `sync` is
 * cuMemAlloc and cuMemFree, `async` is cuMemAllocAsync and cuMemFreeAsync.
 */
#define _GNU_SOURCE
#include "cuda.h"

enum { SMALL = 4096, ASYNC_PAIRS = 200 };

static const struct {
    size_t bytes;
    int pairs;
} kSizes[] = {{4 << 10, 200}, {1 << 20, 20}, {4 << 20, 20}, {64 << 20, 5}};

static void sync_batch(const struct cuda* cuda, size_t bytes, int pairs, long live) {
    address memory;
    const double began = now_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < pairs; ++i) {
        CHECK(cuda->cuMemAlloc(&memory, bytes));
        CHECK(cuda->cuMemFree(memory));
    }
    printf("sync %zu %ld %.2f\n", bytes, live, (now_ns(CLOCK_MONOTONIC) - began) / pairs);
}

/* The pair before the clock starts makes the pool take its memory, which it gives back when the stream is waited for.
 */
static void async_batch(const struct cuda* cuda, size_t bytes, void* stream, long live) {
    double began = 0;
    for (int i = -1; i < ASYNC_PAIRS; ++i) {
        address memory;
        if (i == 0) began = now_ns(CLOCK_MONOTONIC);
        CHECK(cuda->cuMemAllocAsync(&memory, bytes, stream));
        CHECK(cuda->cuMemFreeAsync(memory, stream));
    }
    const double took = now_ns(CLOCK_MONOTONIC) - began;
    CHECK(cuda->cuStreamSynchronize(stream));
    printf("async %zu %ld %.2f\n", bytes, live, took / ASYNC_PAIRS);
}

int main(int count, char** words) {
    if (count < 4) fail("usage: alloc CPU BATCHES LIVE...", 2);
    const struct cuda cuda = by_dlsym(driver_library());
    const int batches = atoi(words[2]);
    void* stream;
    pin(atoi(words[1]));
    enter(&cuda);
    CHECK(cuda.cuStreamCreate(&stream, STREAM_NON_BLOCKING));
    long live = 0;
    for (int i = 3; i < count; ++i) {
        address memory;
        for (const long wanted = atol(words[i]); live < wanted; ++live) CHECK(cuda.cuMemAlloc(&memory, SMALL));
        for (int batch = 0; batch < batches; ++batch) {
            for (size_t size = 0; size < sizeof kSizes / sizeof *kSizes; ++size)
                sync_batch(&cuda, kSizes[size].bytes, kSizes[size].pairs, live);
            if (cuda.cuMemAllocAsync) async_batch(&cuda, 1 << 20, stream, live);
        }
    }
    return 0;
}
