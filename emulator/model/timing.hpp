// What the model knows about an H200: every figure with where it comes from.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shared/protocol.hpp"

namespace emulator::timing {

inline constexpr Time kMicrosecond = 1000;
inline constexpr Time kMillisecond = 1000 * kMicrosecond;

// ---- the runlist ----

// From work arriving for another group to the earliest switch. Fitted: a launch against a 1 us slice takes 273 us in
// all, of which 84 are the gap, 50 the restore, 80 the kernel and 11 the launch itself.
inline constexpr Time kNotice = 45 * kMicrosecond;
// Nobody is resident: median between end and next start in the GPU's own context-switch log (p10 83.8, p90 85.1).
inline constexpr Time kSwitchGap = 84 * kMicrosecond;
// At the start of a residency, without progress. Fitted as above; explains that two jobs at 1 us slices livelock and
// that two at 200 us do 166 units of work in the time one alone does 310.
inline constexpr Time kRestore = 50 * kMicrosecond;
// Saved of the gap when the outgoing group stops at a block boundary (CTA preemption mode): latency 255 against 273-282
// us with short blocks. With blocks of 3.2 ms the wait for the boundary shows: 2.4 ms.
inline constexpr Time kCtaSaving = 20 * kMicrosecond;
// DISABLE_CHANNELS: from the request to the end of the residency (530-720 us in the log), and to the channels going on:
// a start 260-320 us after the request, of which 84 are the gap.
inline constexpr Time kDisableEffect = 550 * kMicrosecond;
inline constexpr Time kEnableEffect = 200 * kMicrosecond;
// PREEMPT: from the request to the end of the residency, and from there to the next start of the same group, when no
// other wants the GPU. Both from the log.
inline constexpr Time kPreemptEffect = 300 * kMicrosecond;
inline constexpr Time kPreemptReturn = 120 * kMicrosecond;
// Against a group made realtime the others give way at the boundary of a kernel only, after the one already fetched
// behind the running one: p50 4.07 ms against batch kernels of 3.2 ms.
inline constexpr int kRealtimeBoundaries = 2;
inline constexpr Time kComputeSlice = 2048 * kMicrosecond;  // defaults of the driver
inline constexpr Time kCopySlice = 1024 * kMicrosecond;

// ---- what is measured of itself ----

// The driver moves what the context-switch log has gathered to its readers this often.
inline constexpr Time kLogInterval = 33 * kMillisecond;
// NVML's samples of utilisation: how often, and how many are kept.
inline constexpr Time kSamplingPeriod = 200 * kMillisecond;
inline constexpr int kSamples = 70;

// ---- kernels ----

inline constexpr std::uint32_t kProcessors = 132;
inline constexpr std::uint32_t kWarpsPerProcessor = 64;
inline constexpr std::uint32_t kBlocksPerProcessor = 32;
inline constexpr std::uint32_t kWarp = 32;
// The smallest kernel. An empty launch and synchronisation takes 11.4 us there, nearly all of it the host's; here the
// host's part is the way to the device process and back.
inline constexpr Time kEmptyKernel = kMicrosecond / 2;
// Device memory bandwidth, for kernels bound by it (bytes a nanosecond).
inline constexpr double kMemoryBytesPerNs = 4000.0;
// One dependent multiply-add per thread and round, in ns; measured with accumulate_lcg at 1, 2, 4, 8 and 16 blocks of
// 256 threads a processor: latency-bound with one block, with a few, and issue-bound per resident warp.
inline constexpr double kRoundOneBlock = 14.25;
inline constexpr double kRoundFewBlocks = 16.3;
inline constexpr double kRoundPerWarp = 0.574;

// ---- copies ----

inline constexpr double kLinkBytesPerNs = 55.0;      // host to device and back
inline constexpr double kDeviceBytesPerNs = 2000.0;  // device to device, and memory set
inline constexpr Time kCopyLatency = 5 * kMicrosecond;

// How a grid of equal blocks runs: `waves` times as many blocks as fit, each wave alike.
struct Occupancy {
    std::uint64_t waves;
    std::uint32_t blocks_per_processor;  // in the fullest wave
    std::uint32_t warps_per_processor;
};

inline Occupancy occupancy(std::uint64_t blocks, std::uint32_t threads_per_block) {
    const std::uint32_t warps = std::max(1U, (threads_per_block + kWarp - 1) / kWarp);
    const std::uint32_t fit = std::clamp(kWarpsPerProcessor / warps, 1U, kBlocksPerProcessor);
    const std::uint64_t wave = std::uint64_t{kProcessors} * fit;
    const std::uint64_t waves = std::max<std::uint64_t>(1, (blocks + wave - 1) / wave);
    const auto resident = static_cast<std::uint32_t>((std::min(blocks, wave) + kProcessors - 1) / kProcessors);
    return {waves, resident, resident * warps};
}

}  // namespace emulator::timing
