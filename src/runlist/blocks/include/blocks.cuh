// Kernels that can be stopped between blocks and resumed where they stopped (docs/blocks.md). For nvcc, NVRTC, and,
// after host.hpp, any C++20 compiler; needs no other header.
//
// A kernel's grid is then physical: as many blocks as fit onto the GPU, or fewer. What the kernel computes is a grid of
// logical blocks, which they take one after another. Whoever leaves has finished what it took, so every logical block
// runs once, however often the kernel is stopped, and with whatever grids it is resumed:
//
//   extern "C" __global__ void scale(float* x, float by, int n, runlist::blocks::Run run) {
//     runlist::blocks::each(run, [&](uint3 blockIdx, dim3 gridDim) {
//       const int i = blockIdx.x * blockDim.x + threadIdx.x;
//       if (i >= n) return;
//       x[i] *= by;
//     });
//   }
#pragma once

namespace runlist {
namespace blocks {

// Of one launch; by value. A null `stop` is one that never asks.
struct Run {
    unsigned long long* next;                 // the logical block to be taken next; in the GPU's memory, 0 at first
    unsigned* halted;                         // in the GPU's memory, 0 at first: one has left before the end, so all
                                              // leave; then how often `stop` was read
    const volatile unsigned long long* stop;  // in the host's memory: 16 bytes, one for each who may stop; 0: go on
    unsigned x, y, z;                         // the logical grid

    __device__ unsigned long long total() const { return static_cast<unsigned long long>(x) * y * z; }
};

// A barrier of all threads of the block, which tells whether all of them have returned from the body. Those that have
// are in another place of the program than those of their own warp that have not, which CUDA's own barriers do not
// allow.
__device__ __forceinline__ bool meet(bool returned) {
#ifdef RUNLIST_HOST
    return __syncthreads_and(returned);
#else
    unsigned all;
    asm volatile(
        "{\n"
        "  .reg .pred one, each;\n"
        "  setp.ne.u32 one, %1, 0;\n"
        "  barrier.red.and.pred each, 0, one;\n"
        "  selp.u32 %0, 1, 0, each;\n"
        "}"
        : "=r"(all)
        : "r"(static_cast<unsigned>(returned))
        : "memory");
    return all != 0;
#endif
}

// What a body calls in place of __syncthreads() if some threads may have returned from it: these take part in each
// barrier until the last has returned.
__device__ __forceinline__ void barrier() { meet(false); }

// The same as parameters of a kernel, which any language can give.
#define RUNLIST_RUN_PARAMETERS                                                                                   \
    unsigned long long *runlist_next, unsigned *runlist_halted, const volatile unsigned long long *runlist_stop, \
        unsigned runlist_x, unsigned runlist_y, unsigned runlist_z
#define RUNLIST_RUN \
    runlist::blocks::Run { runlist_next, runlist_halted, runlist_stop, runlist_x, runlist_y, runlist_z }

// What one physical block knows of when the host's memory was last read.
struct Watch {
    unsigned seen = 0;    // the count of readings, as it was when it last changed
    long long since = 0;  // by the clock of this block's own SM
    bool reads = true;    // whether it is one of those that may read
};

// Whether all are to leave. A GPU reads the host's memory about once in a microsecond, whoever asks, so that one block
// does it for all, once in some 4 µs; at the very first the others wait for its answer. Of many blocks only some look
// whether it is time, as that is another way to the memory of the GPU.
__device__ __forceinline__ bool leaves(const Run& run, Watch& watch) {
    constexpr unsigned kNever = 0, kFirst = 1, kAfterFirst = 2;
    constexpr long long kCycles = 6000;
    volatile unsigned* const halted = run.halted;
    volatile unsigned* const readings = run.halted + 1;
    if (run.stop == nullptr) return *halted != 0;
    if (!watch.reads && watch.seen > kFirst) return *halted != 0;
    const unsigned count = *readings;
    if (*halted != 0) return true;
    if (count > kFirst) {
        const long long time = clock64();
        if (count != watch.seen) {
            watch.seen = count;
            watch.since = time;
            return false;
        }
        if (time - watch.since < kCycles) return false;
        watch.since = time;
        const unsigned next = count + 1 > kFirst ? count + 1 : kAfterFirst;
        if (atomicCAS(run.halted + 1, count, next) != count) return false;
        watch.seen = next;
    } else if (count == kFirst || atomicCAS(run.halted + 1, kNever, kFirst) != kNever) {
        while ((watch.seen = *readings) == kFirst) {
        }
        __threadfence();
        return *halted != 0;
    }
    const bool asked = (run.stop[0] | run.stop[1]) != 0;
    // A kernel queued behind this one must not begin, even if nobody asks any more by then.
    if (asked) atomicExch(run.halted, 1u);
    if (count == kNever) {
        watch.seen = kAfterFirst;
        __threadfence();
        atomicExch(run.halted + 1, unsigned{kAfterFirst});
    }
    return asked;
}

// The number of a logical block that nobody else has or gets; the total or more: there is none, or none is to be taken.
__device__ __forceinline__ unsigned long long take(const Run& run, Watch& watch) {
    return leaves(run, watch) ? run.total() : atomicAdd(run.next, 1ull);
}

// Calls body(blockIdx, gridDim) for logical blocks until none is left, or a stop is asked for. All threads of the block
// call it. Shared memory is the body's from its begin to its end.
template <class Body>
__device__ __forceinline__ void each(const Run& run, const Body& body) {
    __shared__ unsigned long long taken;
    const bool leader = threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0;
    const unsigned long long total = run.total();
    const dim3 grid(run.x, run.y, run.z);
    Watch watch;
    watch.reads = ::blockIdx.x % (::gridDim.x / 32 + 1) == 0;
    for (;;) {
        if (leader) taken = take(run, watch);
        __syncthreads();
        const unsigned long long mine = taken;
        if (mine >= total) return;
        uint3 index;
        if (run.y == 1 && run.z == 1) {  // divisions are dear
            index.x = static_cast<unsigned>(mine), index.y = 0, index.z = 0;
        } else {
            const unsigned long long row = mine / run.x;
            index.x = static_cast<unsigned>(mine - row * run.x);
            index.y = static_cast<unsigned>(row % run.y);
            index.z = static_cast<unsigned>(row / run.y);
        }
        body(index, grid);
        while (!meet(true)) {
        }
    }
}

}  // namespace blocks
}  // namespace runlist
