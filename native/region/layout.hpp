// What a process tree shares: its limits, and what each of its processes holds. A file that all of them map, and that
// the daemon reads and writes with pread and pwrite, as runlist/region.py.
//
// Everything is fixed-width and little-endian, and each cache line has one writer: a slot is its process', a limit the
// daemon's (in a tree by hand its processes' first). No lock: whoever is killed leaves at worst a slot that the next
// one to look takes back.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace runlist::region {

inline constexpr std::uint64_t kMagic = 0x4E4F'4947'4552'4C52;  // "RLREGION"
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint32_t kDevices = 16;
inline constexpr std::uint32_t kSlots = 1024;
inline constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
inline constexpr std::size_t kLine = 64;

// A number that one writes and many read. `check` is ~`value`; a reader that finds them apart for long (the writer was
// killed between the two) takes the smaller of both limits.
struct Limit {
    std::atomic<std::uint64_t> value;
    std::atomic<std::uint64_t> check;
};

struct alignas(kLine) Header {
    std::uint64_t magic;
    std::uint32_t version;
    std::uint32_t header_bytes;
    std::uint32_t device_bytes;
    std::uint32_t slot_bytes;
    std::uint32_t device_count;
    std::uint32_t slot_count;
    std::uint64_t file_bytes;
    std::uint64_t creator_start;  // its start time, clock ticks since boot (field 22 of /proc/PID/stat)
    std::uint64_t pid_namespace;  // inode of the creator's
    std::int32_t creator_pid;
    std::uint32_t owner;  // user id

    alignas(kLine) Limit memory;  // bytes on each GPU that has no limit of its own; kNoLimit for none
    Limit cap;  // compute cap in the process on each GPU that has none of its own: ten-thousandths of its time;
                // kNoLimit: on no GPU, whatever its entry says; 10,000: on none but those that have one of their own
    std::atomic<std::uint32_t> slots_used;  // slots from here on were never claimed
    std::uint32_t strict;                   // 1: a process that cannot be limited is not to start
    std::uint32_t by_hand;                  // 1: made by a tenant, whose environment may limit single GPUs
    std::uint32_t reserved[5];
};

// A GPU. Its entry is claimed by whoever meets it first.
struct alignas(kLine) Device {
    std::atomic<std::uint64_t> key;  // first 8 bytes of the UUID xor the last 8 (1 for 0); 0: free
    std::uint8_t uuid[16];           // written after the key, by anybody who finds it missing
    Limit memory;                    // its own limit; value and check both 0: the header's holds
    Limit cap;                       // its own cap, likewise
    std::uint64_t reserved;

    alignas(kLine) std::atomic<std::uint64_t> next_turn;  // the cap's clock: CLOCK_MONOTONIC ns, see native/cap
    std::atomic<std::uint64_t> refusals;                  // allocations refused so far
};

// What a process holds on a GPU, in bytes; `gpu_ns` is GPU time charged to the cap.
struct Use {
    std::atomic<std::uint64_t> held;      // the program's own memory
    std::atomic<std::uint64_t> overhead;  // contexts, modules, stacks: what the driver takes for it
    std::atomic<std::uint64_t> asking;    // allocations under way: counted before the driver is asked
    std::atomic<std::uint64_t> gpu_ns;
};

enum class SlotState : std::uint32_t {
    kFree = 0,
    kClaimed = 1,
    kForeign = 2,  // of another pid namespace than the creator's
    kReaped = 3,   // being taken back by the process of this pid
};

// What is at work in a process.
enum Enforced : std::uint64_t { kMemory = 1, kQueries = 2, kCap = 4 };

struct alignas(kLine) Slot {
    std::atomic<std::uint64_t> identity;       // pid | state << 32, so that one store claims it
    std::atomic<std::uint64_t> start_time;     // as creator_start; 0 until it is known
    std::atomic<std::uint64_t> enforced;       // bits of Enforced
    std::atomic<std::uint64_t> image;          // differs after exec: what is counted here went with the old program
    std::atomic<std::uint64_t> pid_namespace;  // inode of the namespace that the pid is of
    std::uint64_t reserved[3];
    Use use[kDevices];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint64_t>) == 8);
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(Header) == 2 * kLine && sizeof(Device) == 2 * kLine && sizeof(Use) == kLine / 2);
static_assert(sizeof(Slot) == kLine + kDevices * sizeof(Use));

inline constexpr std::uint64_t kFileBytes = sizeof(Header) + kDevices * sizeof(Device) + kSlots * sizeof(Slot);

}  // namespace runlist::region
