// What the model knows about an H200: its figures are in protocol/calibration.toml, with where they come from.
#pragma once

#include <algorithm>
#include <cstdint>

#include "protocol/calibration.autogen.hpp"

namespace emulator::timing {

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
