// What of NVIDIA's resource manager (RM) matters here: ioctls on /dev/nvidiactl, classes, and their parameters, as in
// the driver's open kernel modules (nvos.h, nv-ioctl.h, class/, ctrl/), tags 550.120 to 595.45.04.
#pragma once

#include <linux/ioctl.h>

#include <cstddef>
#include <cstdint>

namespace runlist::rm {

inline constexpr unsigned kMagic = 'F';

namespace number {
inline constexpr unsigned kFree = 0x29;
inline constexpr unsigned kControl = 0x2A;
inline constexpr unsigned kAlloc = 0x2B;
inline constexpr unsigned kVidHeapControl = 0x4A;
inline constexpr unsigned kTransfer = 211;  // NV_ESC_IOCTL_XFER_CMD
}  // namespace number

namespace class_number {
inline constexpr std::uint32_t kRoot = 0x00;
inline constexpr std::uint32_t kRootNonPrivileged = 0x01;
inline constexpr std::uint32_t kRootClient = 0x41;
inline constexpr std::uint32_t kDevice = 0x80;
inline constexpr std::uint32_t kSubdevice = 0x2080;
inline constexpr std::uint32_t kVideoMemory = 0x40;  // NV01_MEMORY_LOCAL_USER
}  // namespace class_number

namespace status {
inline constexpr std::uint32_t kOk = 0;
inline constexpr std::uint32_t kNoMemory = 0x51;
}  // namespace status

// Any other ioctl, behind a pointer.
struct Transfer {
    std::uint32_t number;
    std::uint32_t size;
    void* parameters;
};
static_assert(sizeof(Transfer) == 16);

// NVOS00
struct Free {
    std::uint32_t client;
    std::uint32_t parent;
    std::uint32_t object;  // the client itself: all that it has
    std::uint32_t status;
};
static_assert(sizeof(Free) == 16);

// NVOS21
struct Alloc {
    std::uint32_t client;
    std::uint32_t parent;
    std::uint32_t object;  // 0: the driver chooses
    std::uint32_t class_number;
    void* parameters;
    std::uint32_t parameter_bytes;
    std::uint32_t status;
};
static_assert(sizeof(Alloc) == 32 && offsetof(Alloc, status) == 28);

// NVOS64
struct AllocWithRights {
    std::uint32_t client;
    std::uint32_t parent;
    std::uint32_t object;
    std::uint32_t class_number;
    void* parameters;
    void* rights;
    std::uint32_t parameter_bytes;
    std::uint32_t flags;
    std::uint32_t status;
    std::uint32_t unused;
};
static_assert(sizeof(AllocWithRights) == 48 && offsetof(AllocWithRights, status) == 40);

// NVOS54
struct Control {
    std::uint32_t client;
    std::uint32_t object;
    std::uint32_t command;
    std::uint32_t flags;
    void* parameters;
    std::uint32_t parameter_bytes;
    std::uint32_t status;
};
static_assert(sizeof(Control) == 32 && offsetof(Control, status) == 28);

inline constexpr unsigned long kControlRequest = _IOWR(kMagic, number::kControl, Control);

// NV2080_CTRL_CMD_GPU_GET_GID_INFO
inline constexpr std::uint32_t kGetGidInfo = 0x2080014A;
inline constexpr std::uint32_t kGidBinary = 2;

struct GidInfo {
    std::uint32_t index;
    std::uint32_t flags;
    std::uint32_t length;
    std::uint8_t data[256];
};
static_assert(sizeof(GidInfo) == 268);

// NV_MEMORY_ALLOCATION_PARAMS
struct MemoryParameters {
    std::uint32_t owner;
    std::uint32_t type;
    std::uint32_t flags;
    std::uint32_t width;
    std::uint32_t height;
    std::int32_t pitch;
    std::uint32_t attributes;
    std::uint32_t attributes2;
    std::uint32_t format;
    std::uint32_t compression_coverage;
    std::uint32_t zcull_coverage;
    std::uint64_t range_low;
    std::uint64_t range_high;
    std::uint64_t size;  // in: wanted, out: what it became
    std::uint64_t alignment;
    std::uint64_t offset;
    std::uint64_t limit;
    std::uint64_t address;
    std::uint32_t tag_offset;
    std::uint32_t address_space;
    std::uint32_t internal_flags;
    std::uint32_t tag;
    std::int32_t numa_node;
};
static_assert(sizeof(MemoryParameters) == 128 && offsetof(MemoryParameters, attributes) == 24);
static_assert(offsetof(MemoryParameters, size) == 64 && offsetof(MemoryParameters, address) == 96);

inline constexpr std::uint32_t kVirtual = 0x80000;  // flag: addresses without memory

// Fields of the attributes, as NVOS32_ATTR_* names them.
constexpr std::uint32_t location(std::uint32_t attributes) { return attributes >> 25 & 3; }
inline constexpr std::uint32_t kInVideoMemory = 0;
constexpr std::uint32_t page_size(std::uint32_t attributes) { return attributes >> 23 & 3; }
inline constexpr std::uint64_t kPageBytes[] = {4 << 10, 4 << 10, 64 << 10,
                                               2 << 20};  // by page_size: any, 4K, big, huge

// NVOS32: how programs older than RM_ALLOC of memory ask, which drivers still understand. What follows depends on the
// function.
struct VidHeapControl {
    std::uint32_t client;
    std::uint32_t parent;
    std::uint32_t function;
    std::uint32_t address_space;
    std::int16_t ivc_heap;
    std::uint32_t status;
    std::uint64_t total;
    std::uint64_t free;
    std::uint32_t owner;
    std::uint32_t memory;
    std::uint32_t type;
    std::uint32_t flags;
    std::uint32_t fields[32];
};
static_assert(sizeof(VidHeapControl) == 184 && offsetof(VidHeapControl, status) == 20);
static_assert(offsetof(VidHeapControl, memory) == 44 && offsetof(VidHeapControl, flags) == 52);

// Where a function that allocates has its parameters, in bytes from the beginning. The alignment follows the size.
struct HeapFunction {
    std::uint32_t function;
    std::size_t attributes;
    std::size_t size;
};

inline constexpr HeapFunction kHeapAllocations[] = {
    {.function = 2, .attributes = 56, .size = 88},   // ALLOC_SIZE
    {.function = 6, .attributes = 64, .size = 88},   // ALLOC_TILED_PITCH_HEIGHT
    {.function = 14, .attributes = 56, .size = 80},  // ALLOC_SIZE_RANGE
};

inline constexpr std::uint32_t kHeapFree = 3;

}  // namespace runlist::rm
