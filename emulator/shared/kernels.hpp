// The kernels that the emulated GPU knows, by name and signature: what libcuda checks a module against.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace emulator {

struct KernelSignature {
    std::string_view name;
    std::span<const std::uint32_t> parameter_sizes;  // bytes, each aligned to its size
};

enum class Kernel : std::uint32_t { kFillU32, kVectorAddF32, kAccumulateLcg, kMatmulF32, kWaitFlagU32, kCount };

namespace detail {
inline constexpr std::array<std::uint32_t, 3> kFill{8, 4, 8};
inline constexpr std::array<std::uint32_t, 4> kVectorAdd{8, 8, 8, 8};
inline constexpr std::array<std::uint32_t, 3> kAccumulate{8, 8, 4};
inline constexpr std::array<std::uint32_t, 4> kMatmul{8, 8, 8, 4};
inline constexpr std::array<std::uint32_t, 2> kWaitFlag{8, 4};
}  // namespace detail

// Indexed by Kernel.
inline constexpr std::array<KernelSignature, static_cast<std::size_t>(Kernel::kCount)> kKernels{{
    {"fill_u32", detail::kFill},
    {"vector_add_f32", detail::kVectorAdd},
    {"accumulate_lcg", detail::kAccumulate},
    {"matmul_f32", detail::kMatmul},
    {"wait_flag_u32", detail::kWaitFlag},
}};

}  // namespace emulator
