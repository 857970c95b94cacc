// CUDA C++ kernels as host C++: what a kernel source needs so that a plain C++20 compiler takes it, and what runs its
// grids on processor threads. For tests, and for trying a kernel where there is no GPU; runlist/blocks/host.py compiles
// and launches.
//
// The blocks of a grid are spread over several threads, which race for real. The threads of one block take turns: each
// runs until its next barrier, as fibres of their own where there is a barrier at all. So a thread must not wait for
// another of its own block but at a barrier, and what only warps have (shuffles, votes) is not here.
#pragma once

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#define RUNLIST_HOST 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One processor thread has one block at a time, so that what is its own is the block's own. In a function it is static
// besides, and `extern __shared__ T name[]` stays a declaration, which host.py gives its definition.
#define __shared__ thread_local

struct uint2 {
    unsigned x, y;
};
struct int2 {
    int x, y;
};
struct float2 {
    float x, y;
};
struct double2 {
    double x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct int3 {
    int x, y, z;
};
struct float3 {
    float x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 from) : x(from.x), y(from.y), z(from.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};
inline constexpr int warpSize = 32;

inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;

namespace host {

constexpr std::size_t kStack = 256 << 10;

// The threads of one block, on the processor thread that calls run().
class Block {
  public:
    // Calls body once for each thread of blockDim, whose index it finds in threadIdx.
    void run(const std::function<void()>& body) {
        body_ = &body;
        total_ = blockDim.x * blockDim.y * blockDim.z;
        if (fibres_.size() < total_) fibres_.resize(total_);
        started_ = 0;
        waiting_.clear();
        // Until a barrier is met each thread begins on the stack of the one before, which is done.
        while (started_ < total_) {
            turn(fresh());
        }
        while (!waiting_.empty()) {
            all_ = reduced_.all, any_ = reduced_.any, count_ = reduced_.count;
            reduced_ = {};
            std::vector<unsigned> turns;
            turns.swap(waiting_);
            for (unsigned each : turns) turn(each);
        }
        reduced_ = {};
    }

    // The calling thread of the block waits until all that have not ended are here.
    void wait(bool predicate) {
        reduced_.all &= predicate;
        reduced_.any |= predicate;
        reduced_.count += predicate;
        const uint3 saved = threadIdx;
        Fibre& mine = fibres_[now_];
        waiting_.push_back(now_);
        if (_setjmp(mine.at) == 0) _longjmp(back_, 1);
        threadIdx = saved;
    }

    bool all() const { return all_; }
    bool any() const { return any_; }
    int count() const { return count_; }

    static Block*& current() {
        static thread_local Block* block = nullptr;
        return block;
    }

    ~Block() {
        for (Fibre& each : fibres_)
            if (each.stack != nullptr) ::munmap(each.stack, kStack);
    }

  private:
    struct Fibre {
        void* stack = nullptr;
        jmp_buf at;
        ucontext_t first;
        enum { kNew, kIdle, kBusy } state = kNew;
    };
    struct Reduced {
        bool all = true, any = false;
        int count = 0;
    };

    // A fibre that no thread of the block is on: one whose thread has ended, or a new one.
    unsigned fresh() {
        if (started_ > 0 && fibres_[now_].state == Fibre::kIdle) return now_;
        for (unsigned each = now_ < total_ ? now_ : 0; each < fibres_.size(); ++each)
            if (fibres_[each].state != Fibre::kBusy) return each;
        for (unsigned each = 0; each < fibres_.size(); ++each)
            if (fibres_[each].state != Fibre::kBusy) return each;
        std::abort();  // there are as many as threads
    }

    void turn(unsigned which) {
        now_ = which;
        if (_setjmp(back_) == 0) go(fibres_[which]);
    }

    [[noreturn]] static void go(Fibre& fibre) {
        if (fibre.state == Fibre::kNew) {
            fibre.stack =
                ::mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (fibre.stack == MAP_FAILED) std::abort();
            ::getcontext(&fibre.first);
            fibre.first.uc_stack.ss_sp = fibre.stack;
            fibre.first.uc_stack.ss_size = kStack;
            fibre.first.uc_link = nullptr;
            ::makecontext(&fibre.first, &Block::main, 0);
            fibre.state = Fibre::kBusy;
            ::setcontext(&fibre.first);
        }
        fibre.state = Fibre::kBusy;
        _longjmp(fibre.at, 1);
    }

    // A fibre's whole life: one thread after another, of this block and of later ones.
    static void main() {
        for (;;) {
            Block& block = *current();
            const unsigned mine = block.now_;
            const unsigned number = block.started_++;
            threadIdx = {number % blockDim.x, number / blockDim.x % blockDim.y, number / blockDim.x / blockDim.y};
            (*block.body_)();
            Fibre& fibre = block.fibres_[mine];
            fibre.state = Fibre::kIdle;
            if (_setjmp(fibre.at) == 0) _longjmp(block.back_, 1);
        }
    }

    const std::function<void()>* body_ = nullptr;
    unsigned total_ = 0, started_ = 0, now_ = 0;
    std::deque<Fibre> fibres_;
    std::vector<unsigned> waiting_;
    Reduced reduced_;
    bool all_ = true, any_ = false;
    int count_ = 0;
    jmp_buf back_;
};

struct Shape {
    unsigned grid[3];
    unsigned block[3];
};

// Launches, one after another, each on several processor threads.
class Stream {
  public:
    explicit Stream(unsigned workers) {
        for (unsigned each = 0; each < workers; ++each) threads_.emplace_back([this] { work(); });
    }

    ~Stream() {
        {
            std::lock_guard held(lock_);
            ending_ = true;
        }
        changed_.notify_all();
        for (std::thread& each : threads_) each.join();
    }

    // Queues `blocks` calls of `one`, with the numbers of the blocks.
    void launch(std::uint64_t blocks, std::function<void(std::uint64_t)> one) {
        if (blocks == 0) return;
        {
            std::lock_guard held(lock_);
            queue_.push_back({blocks, 0, 0, std::move(one)});
        }
        changed_.notify_all();
    }

    // Waits until all that was launched has ended; false if that takes longer than so many seconds (below 0: for ever).
    bool synchronize(double seconds) {
        std::unique_lock held(lock_);
        const auto idle = [this] { return queue_.empty(); };
        if (seconds < 0) return idle_.wait(held, idle), true;
        return idle_.wait_for(held, std::chrono::duration<double>(seconds), idle);
    }

  private:
    struct Launch {
        std::uint64_t blocks, begun, ended;
        std::function<void(std::uint64_t)> one;
    };

    void work() {
        std::unique_lock held(lock_);
        for (;;) {
            changed_.wait(held, [this] { return ending_ || (!queue_.empty() && queue_[0].begun < queue_[0].blocks); });
            if (queue_.empty() || queue_[0].begun == queue_[0].blocks) return;
            Launch& launch =
                queue_[0];  // a deque moves nothing that stays, and this stays until its last block has ended
            const std::uint64_t mine = launch.begun++;
            held.unlock();
            launch.one(mine);
            held.lock();
            if (++launch.ended == launch.blocks) {
                queue_.pop_front();
                if (queue_.empty())
                    idle_.notify_all();
                else
                    changed_.notify_all();
            }
        }
    }

    std::mutex lock_;
    std::condition_variable changed_, idle_;
    std::deque<Launch> queue_;
    bool ending_ = false;
    std::vector<std::thread> threads_;
};

// Queues a kernel; `arguments` point to its parameters in order, which are copied.
template <typename... Parameters>
void launch(Stream& stream, const Shape& shape, void (*kernel)(Parameters...), void** arguments) {
    const dim3 grid(shape.grid[0], shape.grid[1], shape.grid[2]);
    const dim3 block(shape.block[0], shape.block[1], shape.block[2]);
    const auto taken = [&]<std::size_t... kPlace>(std::index_sequence<kPlace...>) {
        return std::tuple<Parameters...>(*static_cast<Parameters*>(arguments[kPlace])...);
    }(std::index_sequence_for<Parameters...>());
    const auto body = [kernel, taken] { std::apply(kernel, taken); };
    stream.launch(std::uint64_t{grid.x} * grid.y * grid.z, [grid, block, body](std::uint64_t number) {
        static thread_local Block threads;
        Block::current() = &threads;
        gridDim = grid;
        blockDim = block;
        blockIdx = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                    static_cast<unsigned>(number / grid.x / grid.y)};
        threads.run(body);
    });
}

template <typename T>
T changed(T* where, auto&& to) {
    std::atomic_ref<T> held(*where);
    T old = held.load();
    while (!held.compare_exchange_weak(old, to(old))) {
    }
    return old;
}

}  // namespace host

// Barriers
inline void __syncthreads() { host::Block::current()->wait(true); }
inline int __syncthreads_and(int predicate) {
    host::Block::current()->wait(predicate != 0);
    return host::Block::current()->all();
}
inline int __syncthreads_or(int predicate) {
    host::Block::current()->wait(predicate != 0);
    return host::Block::current()->any();
}
inline int __syncthreads_count(int predicate) {
    host::Block::current()->wait(predicate != 0);
    return host::Block::current()->count();
}
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// Atomics. The second parameter takes what converts to the type, as CUDA's overloads do.
template <typename T>
T atomicAdd(T* where, std::type_identity_t<T> value) {
    return host::changed(where, [=](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicSub(T* where, std::type_identity_t<T> value) {
    return host::changed(where, [=](T old) { return static_cast<T>(old - value); });
}
template <typename T>
T atomicMin(T* where, std::type_identity_t<T> value) {
    return host::changed(where, [=](T old) { return std::min(old, value); });
}
template <typename T>
T atomicMax(T* where, std::type_identity_t<T> value) {
    return host::changed(where, [=](T old) { return std::max(old, value); });
}
template <typename T>
T atomicOr(T* where, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(*where).fetch_or(value);
}
template <typename T>
T atomicAnd(T* where, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(*where).fetch_and(value);
}
template <typename T>
T atomicExch(T* where, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(*where).exchange(value);
}
template <typename T>
T atomicCAS(T* where, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
    std::atomic_ref<T>(*where).compare_exchange_strong(compare, value);
    return compare;
}

// What kernels call besides
using std::max;
using std::min;
template <typename T>
T __ldg(const T* where) {
    return *where;
}
inline int __popc(unsigned value) { return std::popcount(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }
inline int __ffs(int value) { return value == 0 ? 0 : std::countr_zero(static_cast<unsigned>(value)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (std::uint64_t{a} * b) >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline double rsqrt(double value) { return 1.0 / std::sqrt(value); }
inline void __nanosleep(unsigned nanoseconds) { std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds)); }
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
inline unsigned long long globaltimer() {
    return static_cast<unsigned long long>(std::chrono::steady_clock::now().time_since_epoch().count());
}

extern "C" inline __attribute__((used)) host::Stream* runlist_host_stream(unsigned workers) {
    return new host::Stream(workers);
}
extern "C" inline __attribute__((used)) void runlist_host_stream_free(host::Stream* stream) { delete stream; }
extern "C" inline __attribute__((used)) int runlist_host_synchronize(host::Stream* stream, double seconds) {
    return stream->synchronize(seconds) ? 1 : 0;
}
