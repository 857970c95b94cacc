// What one process knows of its emulated GPUs: the connection, and the objects behind CUDA's handles.
//
// One lock guards all of it; nothing waits for the GPU with the lock held. The driver is made by cuInit and never
// destroyed, so that calls from exit handlers and late threads find it. A child made by fork has none.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/connection.hpp"
#include "cuda/exports.hpp"
#include "cuda/heap.hpp"

namespace emulator::cuda {

struct Capture;
struct Context;
struct Node;

// Never given twice in a process.
inline std::uint64_t new_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

struct Stream {
    Context* context;
    std::uint32_t slot;
    int priority;
    unsigned flags;
    std::uint64_t submitted = 0;  // sequence number of the last operation
    std::uint64_t id = new_id();
    std::shared_ptr<Capture> capture = nullptr;  // while it captures, and
    std::vector<Node*> captured = {};            // the nodes that the next one comes behind
};

struct Event {
    Context* context;
    std::uint32_t slot;
    unsigned flags;
    bool recorded = false;
    std::uint32_t stream = 0;  // slot of the stream that it was last recorded in, and
    std::uint64_t sequence = 0;
    std::shared_ptr<Capture> capture = nullptr;  // when that stream was capturing, and
    std::vector<Node*> captured = {};            // the nodes that it stands for
};

struct Context {
    std::uint32_t slot;
    int gpu;
    unsigned flags;
    bool primary;
    UniqueFd node;                                       // a context keeps device nodes open, as on a real GPU
    Stream* legacy = nullptr;                            // the default stream, which all blocking streams order with
    std::map<std::thread::id, Stream*> per_thread = {};  // CU_STREAM_PER_THREAD
    std::set<Stream*> streams = {};                      // all of them
    std::vector<DeviceMemory> overhead = {};             // what a context takes for itself
    Heap heap = Heap(static_cast<std::uint32_t>(gpu));   // small allocations
    Heap code = Heap(static_cast<std::uint32_t>(gpu));   // modules
    std::map<CUlimit, std::size_t> limits = {};          // those that were set
    std::uint64_t id = new_id();
};

struct Pool;

// Device memory of a program, by address. Addresses that a program maps by itself are kept elsewhere.
struct Allocation {
    enum class Kind { kOwn, kCut, kPool, kImported };

    std::uint64_t bytes;
    Context* context;
    Kind kind;
    Block block = {};      // all but kCut, which is out of the context's heap, and kPool
    Pool* pool = nullptr;  // kPool
    std::uint64_t id = new_id();
};

struct HostAllocation {
    std::size_t bytes;
    Context* context;
    bool managed = false;
    std::uint64_t id = new_id();
};

struct Primary {
    Context* context = nullptr;
    unsigned uses = 0;
    unsigned flags = 0;
};

inline FreeRanges all_addresses() {
    FreeRanges all;
    all.add(wire::kDeviceAddressBase, wire::kDeviceAddressBytes);
    return all;
}

class Driver {
  public:
    // nullptr before cuInit, and in a forked child.
    static Driver* get();
    static CUresult initialize();

    std::mutex lock;
    Connection connection;
    RmClient& rm = connection.rm;
    FreeRanges addresses = all_addresses();  // of device memory
    std::vector<Primary> primaries;          // by GPU
    std::set<Context*> contexts;
    std::set<Stream*> streams;
    std::set<Event*> events;
    std::map<std::uint64_t, Allocation> memory;
    std::map<std::uintptr_t, HostAllocation> host_memory;
    std::vector<bool> stream_slots = std::vector<bool>(wire::kStreamSlots);
    std::vector<bool> event_slots = std::vector<bool>(wire::kEventSlots);
};

// ---- contexts (context.cpp)
// -----------------------------------------------------------------------------------------------

// The calling thread's current context; nullptr when there is none, or when it has been destroyed.
Context* current_context(Driver& driver);
// cuDevicePrimaryCtxRetain, for calls out of this library: nothing that is preloaded stands before it.
CUresult retain_primary(CUcontext* handle, CUdevice device);
// Sticky error of the context.
CUresult context_error(const Driver& driver, const Context& context);

// ---- streams (stream.cpp); the lock is held unless said
// ---------------------------------------------------------------------

CUresult make_stream(Driver& driver, Context& context, int priority, unsigned flags, Stream*& made);
CUresult destroy_stream(Driver& driver, Stream& stream);
// The stream that a handle names in the current context; nullptr when it names none.
Stream* find_stream(Driver& driver, CUstream handle);
// Queues one operation, in order with the default stream. A capturing stream captures it.
CUresult submit(Driver& driver, Stream& stream, wire::Request& request);
// Queues one operation behind the stream's last, whatever other streams do.
CUresult append(Driver& driver, Stream& stream, wire::Request& request);
// Makes what comes next in the stream wait for an operation of another.
CUresult append_wait(Driver& driver, Stream& stream, std::uint32_t slot, std::uint64_t sequence);
// Goes before new work in a stream that does not capture: the reasons to refuse it, and the waits that CUDA puts
// between the default stream and the others.
CUresult begin_work(Driver& driver, Stream& stream);
// Waits, without the lock, for the operation; returns the context's error, if it has one.
CUresult wait_for(Driver& driver, const Context& context, std::uint32_t slot, std::uint64_t sequence);
bool is_done(Driver& driver, std::uint32_t slot, std::uint64_t sequence);
// Waits, without the lock, for everything in the context.
CUresult synchronize(Driver& driver, Context& context);

}  // namespace emulator::cuda

// Opens an entry point: the driver as `driver` and its lock as `guard`.
#define EMULATOR_ENTER()                                                   \
    emulator::cuda::Driver* const entered = emulator::cuda::Driver::get(); \
    if (!entered) return CUDA_ERROR_NOT_INITIALIZED;                       \
    emulator::cuda::Driver& driver = *entered;                             \
    std::unique_lock guard(driver.lock)

// The same for calls that need a current context, as `context`.
#define EMULATOR_ENTER_CONTEXT()                                                      \
    EMULATOR_ENTER();                                                                 \
    emulator::cuda::Context* const current = emulator::cuda::current_context(driver); \
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;                                  \
    emulator::cuda::Context& context = *current
