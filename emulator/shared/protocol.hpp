// The two sockets of an emulated GPU, as its clients see them. What others than its own libraries know of them is in
// protocol/emulator.toml. Every structure is fixed-width, little endian and free of padding that carries meaning.
#pragma once

#include <atomic>
#include <cstdint>

#include "protocol/emulator.autogen.hpp"
#include "protocol/environment.autogen.hpp"
#include "protocol/rm.autogen.hpp"

namespace emulator {

namespace names = runlist::names;
namespace rm = runlist::rm;

// Nanoseconds of CLOCK_MONOTONIC.
using Time = std::int64_t;

}  // namespace emulator

// On nvidiactl programs make calls by `runlist_emulated_ioctl(descriptor, request, argument)`, a function that libcuda
// exports and calls through its linkage table, as a real libcuda calls ioctl(): what is preloaded can take its place.
// Requests have the driver's own numbers, _IOWR('F', number, size of the argument).

namespace emulator::wire {

// ---- nvidia0: the CUDA calls of one process
// -------------------------------------------------------------------------------

inline constexpr std::uint32_t kStreamSlots = 4096;
inline constexpr std::uint32_t kEventSlots = 65536;
inline constexpr std::uint32_t kContextSlots = 64;
inline constexpr std::uint32_t kMaxParameterBytes = 64;
// Work that a stream may have outstanding before its owner has to wait, as a channel's ring has a length.
inline constexpr std::uint64_t kStreamDepth = 1024;
// Device addresses start here: far from anything a process maps, so that a host access to one faults, as on a real GPU.
inline constexpr std::uint64_t kDeviceAddressBase = 0x0A00'0000'0000'0000;
inline constexpr std::uint64_t kDeviceAddressBytes = 1ULL << 47;  // for all GPUs together
inline constexpr std::uint64_t kPageBytes = 2 << 20;              // of device memory, and of its addresses

// One stream as its owner may read it without asking the device.
struct alignas(64) StreamState {
    std::atomic<std::uint64_t> completed;  // sequence number of the last operation done
    std::atomic<Time> expected;            // the awaited operation is not done before this; 0 while nobody has looked
    std::atomic<std::uint32_t> wake;       // futex: changes shortly before and when an awaited operation is done
};

// Shared between the device (writer) and one process (reader), created and sealed by the device.
struct ControlPage {
    StreamState streams[kStreamSlots];
    std::atomic<Time> event_time[kEventSlots];                // when the event was last recorded, model time
    std::atomic<std::uint32_t> context_error[kContextSlots];  // sticky CUresult of a context, 0 when sound
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

enum class Call : std::uint32_t {
    // Answered with a Reply.
    kHello = 1,
    kOpenContext,
    kCloseContext,
    kReserve,  // device addresses, with nothing behind them
    kRelease,
    kMemoryInfo,  // this and the next may come without a kHello
    kListProcesses,
    kAllocateHost,
    kFreeHost,
    kOpenStream,
    kCloseStream,
    // Not answered.
    kSubmit,
    kWatch,     // somebody waits for operation `sequence` of `stream`
    kHostDone,  // the host function that is operation `sequence` of `stream` has returned
    // Answered with a Reply; may come without a kHello.
    kListSamples,
    // Answered with a Reply.
    kMap,  // puts device memory, an object of the process's RM client, behind reserved addresses
    kUnmap,
    kExport,  // names device memory by a key for other processes
    kImport,  // makes an object of such memory, which is not charged again
    // Events that several processes see; answered with a Reply, so that whoever is told of a call comes after it.
    kShareEvent,   // names an event by a key for other processes
    kOpenEvent,    // has an event of the process be the one that the key names
    kForgetEvent,  // of this process
    kRecordEvent,  // queues a record, as kSubmit does
    kAwaitEvent,   // queues a wait for what was recorded last
    kQueryEvent,
};

enum class Operation : std::uint32_t { kKernel = 1, kCopy, kFill, kDepend, kRecord, kHost, kAwait };

struct KernelLaunch {
    std::uint32_t kernel;  // index into the table of kernels
    std::uint32_t grid[3];
    std::uint32_t block[3];
    std::uint32_t parameter_bytes;
    std::uint8_t parameters[kMaxParameterBytes];
};

struct Copy {
    std::uint64_t destination;
    std::uint64_t source;
    std::uint64_t bytes;
};

struct Fill {
    std::uint64_t destination;
    std::uint64_t count;  // elements
    std::uint32_t value;
    std::uint32_t width;  // bytes an element: 1, 2 or 4
};

struct Depend {
    std::uint64_t sequence;
    std::uint32_t stream;
};

struct Key {
    std::uint8_t bytes[16];
};

struct Record {
    std::uint32_t event;
};

// An event of this process, and which one it is.
struct Sharing {
    Key key;  // kOpenEvent
    std::uint32_t event;
};

// Which device memory, and from where on.
struct Memory {
    std::uint64_t offset;  // kMap
    std::uint32_t handle;
};

struct Import {
    Key key;
    std::uint32_t handle;  // that the new object gets
};

// MPS as programs choose it: those that name a pipe directory share one channel group.
struct Hello {
    std::uint32_t client;  // the process's RM client, with a device object for each GPU
    std::uint32_t reserved;
    std::uint32_t mps;           // 1: a client of MPS, of this priority
    std::uint32_t mps_priority;  // 0 normal, 1 below normal
};

struct Request {
    Call call;
    Operation operation;     // kSubmit
    std::uint32_t context;   // kCloseContext, kOpenStream, kSubmit, kWatch, kHostDone
    std::uint32_t stream;    // kSubmit, kWatch, kHostDone, kOpenStream, kCloseStream
    std::uint64_t sequence;  // kSubmit, kWatch, kHostDone
    Time arrival;            // kSubmit: the caller's clock
    std::uint32_t gpu;       // kOpenContext, kMemoryInfo, kListProcesses, kListSamples
    std::int32_t priority;   // kOpenStream; lower is more urgent, as in CUDA
    std::uint64_t address;   // kReserve, kRelease, kMap, kUnmap, kFreeHost; kAllocateHost: where the caller will map it
    std::uint64_t bytes;     // kReserve, kMap, kUnmap, kAllocateHost
    union {
        Hello hello;
        Memory memory;  // kMap, kExport
        Import import;
        KernelLaunch launch;
        Copy copy;
        Fill fill;
        Depend depend;
        Record record;
        Sharing sharing;  // kShareEvent and those that follow
    };
};

// A descriptor travels with the answers to kHello (the control page) and to kAllocateHost (the memory).
struct Reply {
    std::uint32_t result;  // a CUresult
    // kHello, kMemoryInfo: number of GPUs; kOpenContext: its slot; kList…: how many follow; kQueryEvent: whether it
    // has happened.
    std::uint32_t value;
    std::uint32_t gpu;  // kImport: which GPU's memory it is
    std::uint32_t reserved;
    std::uint64_t bytes;  // kMemoryInfo: free; kImport: of the memory
    std::uint64_t total;  // kMemoryInfo
    union {
        std::uint8_t uuid[16];  // kMemoryInfo
        Key key;                // kExport, kShareEvent
    };
};

// How busy something was in a sampling period: percent of the time in which kernels were executing.
struct BusySample {
    Time end;  // of the period; 0 for none
    std::uint32_t percent;
    std::uint32_t reserved;
};

// After a Reply to kListProcesses: one for each process with a context on the GPU.
inline constexpr std::uint32_t kMaxListed = 1024;
struct ListedProcess {
    std::int32_t pid;
    std::uint32_t mps;     // 1: a client of MPS
    std::uint64_t memory;  // bytes
    BusySample sample;     // the newest in which it was busy at all
};

// After a Reply to kListSamples: one for each of the GPU's last periods, the oldest first.
inline constexpr std::uint32_t kMaxSamples = 128;

}  // namespace emulator::wire
