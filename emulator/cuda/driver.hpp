// What one process knows of its emulated GPUs: the connection, and the objects behind CUDA's handles.
//
// One lock guards all of it; nothing waits for the GPU with the lock held. The driver is made by cuInit and never
// destroyed, so that calls from exit handlers and late threads find it. A child made by fork has none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "connection.hpp"
#include "exports.hpp"

namespace emulator::cuda {

struct Context;

struct Stream {
    Context* context;
    std::uint32_t slot;
    int priority;
    unsigned flags;
    std::uint64_t submitted = 0;  // sequence number of the last operation
};

struct Event {
    Context* context;
    std::uint32_t slot;
    unsigned flags;
    bool recorded = false;
    std::uint32_t stream = 0;  // slot of the stream that it was last recorded in, and
    std::uint64_t sequence = 0;
};

struct Context {
    std::uint32_t slot;
    int gpu;
    unsigned flags;
    bool primary;
    int node;                                            // a context keeps device nodes open, as on a real GPU
    Stream* legacy = nullptr;                            // the default stream, which all blocking streams order with
    std::map<std::thread::id, Stream*> per_thread = {};  // CU_STREAM_PER_THREAD
    std::set<Stream*> streams = {};                      // all of them
};

struct Allocation {
    std::uint64_t bytes;
    Context* context;
};

struct HostAllocation {
    std::size_t bytes;
    unsigned flags;
    Context* context;
};

struct Primary {
    Context* context = nullptr;
    unsigned uses = 0;
    unsigned flags = 0;
};

class Driver {
  public:
    // nullptr before cuInit, and in a forked child.
    static Driver* get();
    static CUresult initialize();

    std::mutex lock;
    Connection connection;
    std::vector<Primary> primaries;  // by GPU
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
// Sticky error of the context.
CUresult context_error(const Driver& driver, const Context& context);

// ---- streams (stream.cpp); the lock is held unless said
// ---------------------------------------------------------------------

CUresult make_stream(Driver& driver, Context& context, int priority, unsigned flags, Stream*& made);
CUresult destroy_stream(Driver& driver, Stream& stream);
// The stream that a handle names in the current context; nullptr when it names none.
Stream* find_stream(Driver& driver, CUstream handle);
// Queues one operation, in order with the default stream.
CUresult submit(Driver& driver, Stream& stream, wire::Request& request);
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
