// The two sockets of an emulated GPU, as its clients see them.
//
// `DIR/nvidiactl` stands for /dev/nvidiactl: one connection is one open file of the driver, and a copy of its
// descriptor is as good as the original. `DIR/nvidia0` carries the CUDA calls of one process and is never shared. Both
// are SOCK_SEQPACKET; every structure is fixed-width, little endian and free of padding that carries meaning.
#pragma once

#include <atomic>
#include <cstdint>

namespace emulator {

// Nanoseconds of CLOCK_MONOTONIC.
using Time = std::int64_t;

}  // namespace emulator

namespace emulator::wire {

inline constexpr char kControlSocket[] = "nvidiactl";
inline constexpr char kGpuSocket[] = "nvidia0";
// Opened and closed by a process at cuInit and at each context: an inotify watch on it sees new contexts without
// polling.
inline constexpr char kOpenedFile[] = "opened";
inline constexpr char kDirectoryVariable[] = "RUNLIST_EMULATED_GPU";
inline constexpr char kMpsVariable[] = "CUDA_MPS_PIPE_DIRECTORY";
inline constexpr char kMpsPriorityVariable[] = "CUDA_MPS_CLIENT_PRIORITY";
inline constexpr char kHandleBaseVariable[] = "RUNLIST_EMULATED_HANDLE_BASE";

// ---- nvidiactl: the driver's ioctls
// ---------------------------------------------------------------------------------------

inline constexpr std::uint32_t kRmMagic = 0x314C4E52;  // "RNL1"
inline constexpr std::uint32_t kRmMaxBytes = 64 * 1024;

enum RmIoctl : std::uint32_t { kRmFree = 0x29, kRmControl = 0x2A, kRmAlloc = 0x2B, kRmMapMemory = 0x4E };

// Followed by `arg_size` bytes (the driver's own structure) and `params_size` bytes (what its pointer points to).
// Carries one descriptor, a connected SOCK_SEQPACKET socket on which the answer is sent.
struct RmRequest {
    std::uint32_t magic;
    std::uint32_t nr;
    std::uint32_t arg_size;
    std::uint32_t params_size;
};

// Followed by the same bytes as the request, with status and handles filled in. The answer to kRmMapMemory carries a
// descriptor of the memory, for mmap; a real driver takes one in the request for that.
struct RmReply {
    std::int32_t error;  // 0 or a positive errno: what ioctl() would have set
    std::uint32_t arg_size;
    std::uint32_t params_size;
    std::uint32_t reserved;
};

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
inline constexpr std::uint64_t kDeviceAddressStride = 1ULL << 40;  // from one GPU's arena to the next

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
    kAllocate,
    kFree,
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
};

enum class Operation : std::uint32_t { kKernel = 1, kCopy, kFill, kDepend, kRecord, kHost };

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

struct Record {
    std::uint32_t event;
};

// MPS as programs choose it: those that name a pipe directory share one channel group.
struct Hello {
    std::uint32_t client;        // the process's RM client
    std::uint32_t handle_base;   // where its objects' handles begin, or 0 for the driver's own choice
    std::uint32_t mps;           // 1: a client of MPS, of this priority
    std::uint32_t mps_priority;  // 0 normal, 1 below normal
};

struct Request {
    Call call;
    Operation operation;     // kSubmit
    std::uint32_t context;   // all but kHello, kMemoryInfo, kAllocateHost and kFreeHost
    std::uint32_t stream;    // kSubmit, kWatch, kHostDone, kOpenStream, kCloseStream
    std::uint64_t sequence;  // kSubmit, kWatch, kHostDone
    Time arrival;            // kSubmit: the caller's clock
    std::uint32_t gpu;       // kOpenContext, kMemoryInfo, kListProcesses, kListSamples
    std::int32_t priority;   // kOpenStream; lower is more urgent, as in CUDA
    std::uint64_t address;   // kFree, kFreeHost; kAllocateHost: where the caller will map it
    std::uint64_t bytes;     // kAllocate, kAllocateHost
    union {
        Hello hello;
        KernelLaunch launch;
        Copy copy;
        Fill fill;
        Depend depend;
        Record record;
    };
};

// A descriptor travels with the answers to kHello (the control page), to the first kOpenContext on a GPU (its arena)
// and to kAllocateHost (the memory).
struct Reply {
    std::uint32_t result;  // a CUresult
    std::uint32_t value;   // kHello, kMemoryInfo: number of GPUs; kOpenContext: its slot; kList…: how many follow
    std::uint64_t address;
    std::uint64_t bytes;
    std::uint64_t total;
    std::uint8_t uuid[16];  // kMemoryInfo
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
    std::uint32_t reserved;
    std::uint64_t memory;  // bytes
    BusySample sample;     // the newest in which it was busy at all
};

// After a Reply to kListSamples: one for each of the GPU's last periods, the oldest first.
inline constexpr std::uint32_t kMaxSamples = 128;

}  // namespace emulator::wire
