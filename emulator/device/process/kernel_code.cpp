#include "device/process/kernel_code.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "model/timing.hpp"

namespace emulator {
namespace {

constexpr std::uint32_t kMultiplier = 1664525;
constexpr std::uint32_t kIncrement = 1013904223;
// Rows of a matrix: the device computes it on one processor, in about a second, and serves nobody meanwhile.
constexpr std::uint32_t kMaxMatrix = 1024;
constexpr Time kLongest = 1000LL * 3600 * 1'000'000'000;  // of a kernel; keeps times far from overflow

// x -> factor * x + term, modulo 2^32.
struct Affine {
    std::uint32_t factor = 1;
    std::uint32_t term = 0;
};

// `rounds` steps of the generator as one step, by repeated squaring.
Affine skip_ahead(std::uint32_t rounds) {
    Affine result;
    Affine step{kMultiplier, kIncrement};
    for (; rounds != 0; rounds >>= 1) {
        if (rounds & 1) result = {step.factor * result.factor, step.factor * result.term + step.term};
        step = {step.factor * step.factor, step.factor * step.term + step.term};
    }
    return result;
}

void apply(Affine step, std::uint32_t* values, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) values[i] = values[i] * step.factor + step.term;
}

// The elements of [0, n) that belong to threads `first` to `last`.
struct Elements {
    std::uint64_t begin;
    std::uint64_t end;
    std::uint64_t count() const { return end - begin; }
};

Elements elements(std::uint64_t first, std::uint64_t last, std::uint64_t n) {
    return {std::min(first, n), std::min(last, n)};
}

template <typename T>
T* array(const AddressSpace& memory, std::uint64_t address, std::uint64_t begin, std::uint64_t count) {
    if (address % sizeof(T) != 0 || count > ~0ULL / sizeof(T) || begin > ~0ULL / sizeof(T)) return nullptr;
    return reinterpret_cast<T*>(memory.find(address + begin * sizeof(T), count * sizeof(T)));
}

}  // namespace

std::optional<KernelRun> KernelRun::make(const wire::KernelLaunch& launch) {
    if (launch.kernel >= kKernels.size()) return std::nullopt;
    std::uint32_t bytes = 0;
    for (const std::uint32_t size : kKernels[launch.kernel].parameter_sizes)
        bytes = (bytes + size - 1) / size * size + size;
    if (launch.parameter_bytes != bytes) return std::nullopt;
    const auto zero = [](std::uint32_t value) { return value == 0; };
    if (std::ranges::any_of(launch.grid, zero) || std::ranges::any_of(launch.block, zero)) return std::nullopt;
    if (launch.grid[0] > 0x7FFFFFFF || launch.grid[1] > 65535 || launch.grid[2] > 65535) return std::nullopt;
    if (std::ranges::any_of(launch.block, [](std::uint32_t value) { return value > 1024; })) return std::nullopt;
    const KernelRun run(launch);
    if (run.threads() > 1024) return std::nullopt;
    const bool matmul = launch.kernel == static_cast<std::uint32_t>(Kernel::kMatmulF32);
    const auto beyond_x = [](const std::uint32_t (&size)[3]) { return size[1] != 1 || size[2] != 1; };
    if (!matmul && (beyond_x(launch.grid) || beyond_x(launch.block))) return std::nullopt;
    if (matmul && (launch.grid[2] != 1 || launch.block[2] != 1 || run.parameter<std::uint32_t>(3) > kMaxMatrix))
        return std::nullopt;
    return run;
}

template <typename T>
T KernelRun::parameter(std::uint32_t index) const {
    const auto sizes = kKernels[launch_.kernel].parameter_sizes;
    std::uint32_t offset = 0;
    for (std::uint32_t i = 0; i < index; ++i) offset = (offset + sizes[i] - 1) / sizes[i] * sizes[i] + sizes[i];
    offset = (offset + sizes[index] - 1) / sizes[index] * sizes[index];
    T value;
    std::memcpy(&value, launch_.parameters + offset, sizeof value);
    return value;
}

std::uint64_t KernelRun::blocks() const { return std::uint64_t{launch_.grid[0]} * launch_.grid[1] * launch_.grid[2]; }

std::uint64_t KernelRun::threads() const {
    return std::uint64_t{launch_.block[0]} * launch_.block[1] * launch_.block[2];
}

Work KernelRun::work() const {
    const timing::Occupancy fit = timing::occupancy(blocks(), static_cast<std::uint32_t>(threads()));
    const double threads_a_wave =
        static_cast<double>(blocks()) * static_cast<double>(threads()) / static_cast<double>(fit.waves);
    double wave = 0;
    switch (static_cast<Kernel>(launch_.kernel)) {
        case Kernel::kAccumulateLcg: {
            const double latency = fit.blocks_per_processor <= 1 ? timing::kRoundOneBlock : timing::kRoundFewBlocks;
            wave = parameter<std::uint32_t>(2) * std::max(latency, timing::kRoundPerWarp * fit.warps_per_processor);
            break;
        }
        case Kernel::kMatmulF32: {
            // Two rounds an element of the sum: a load that hits in cache and a dependent multiply and add.
            const double latency = fit.blocks_per_processor <= 1 ? timing::kRoundOneBlock : timing::kRoundFewBlocks;
            wave = 2 * parameter<std::uint32_t>(3) * std::max(latency, timing::kRoundPerWarp * fit.warps_per_processor);
            break;
        }
        case Kernel::kFillU32:
            wave = threads_a_wave * 4 / timing::kMemoryBytesPerNs;
            break;
        case Kernel::kVectorAddF32:
            wave = threads_a_wave * 12 / timing::kMemoryBytesPerNs;
            break;
        case Kernel::kWaitFlagU32:
        case Kernel::kCount:
            return {.waves = 1, .wave = 0, .holds = true};
    }
    const auto floor = timing::kEmptyKernel / static_cast<Time>(fit.waves);
    const double longest = static_cast<double>(kLongest) / static_cast<double>(fit.waves);
    return {.waves = fit.waves, .wave = static_cast<Time>(std::min(wave, longest)) + floor};
}

bool KernelRun::run_to(double fraction, const AddressSpace& memory) {
    const std::uint64_t all = blocks();
    const auto target = fraction >= 1 ? all : static_cast<std::uint64_t>(fraction * static_cast<double>(all));
    if (target <= executed_) return true;
    const std::uint64_t first = std::exchange(executed_, target);
    return run_blocks(first, target, memory);
}

bool KernelRun::run_blocks(std::uint64_t first, std::uint64_t last, const AddressSpace& memory) const {
    const std::uint64_t begin = first * launch_.block[0];
    const std::uint64_t end = last * launch_.block[0];
    switch (static_cast<Kernel>(launch_.kernel)) {
        case Kernel::kFillU32: {
            const Elements part = elements(begin, end, parameter<std::uint64_t>(2));
            if (part.count() == 0) return true;
            auto* out = array<std::uint32_t>(memory, parameter<std::uint64_t>(0), part.begin, part.count());
            if (!out) return false;
            std::fill_n(out, part.count(), parameter<std::uint32_t>(1));
            return true;
        }
        case Kernel::kVectorAddF32: {
            const Elements part = elements(begin, end, parameter<std::uint64_t>(3));
            if (part.count() == 0) return true;
            const auto* a = array<float>(memory, parameter<std::uint64_t>(0), part.begin, part.count());
            const auto* b = array<float>(memory, parameter<std::uint64_t>(1), part.begin, part.count());
            auto* c = array<float>(memory, parameter<std::uint64_t>(2), part.begin, part.count());
            if (!a || !b || !c) return false;
            for (std::uint64_t i = 0; i < part.count(); ++i) c[i] = a[i] + b[i];
            return true;
        }
        case Kernel::kAccumulateLcg: {
            const Elements part = elements(begin, end, parameter<std::uint64_t>(1));
            if (part.count() == 0) return true;
            auto* state = array<std::uint32_t>(memory, parameter<std::uint64_t>(0), part.begin, part.count());
            if (!state) return false;
            apply(skip_ahead(parameter<std::uint32_t>(2)), state, part.count());
            return true;
        }
        case Kernel::kMatmulF32: {
            const std::uint64_t n = parameter<std::uint32_t>(3);
            if (n == 0) return true;
            const auto* a = array<float>(memory, parameter<std::uint64_t>(0), 0, n * n);
            const auto* b = array<float>(memory, parameter<std::uint64_t>(1), 0, n * n);
            auto* c = array<float>(memory, parameter<std::uint64_t>(2), 0, n * n);
            if (!a || !b || !c) return false;
            const std::uint64_t rows_of_blocks = (n + launch_.block[1] - 1) / launch_.block[1];
            last = std::min(last, rows_of_blocks * launch_.grid[0]);  // those behind have nothing to do
            for (std::uint64_t block = first; block < last; ++block) {
                const std::uint64_t row0 = block / launch_.grid[0] * launch_.block[1];
                const std::uint64_t col0 = block % launch_.grid[0] * launch_.block[0];
                for (std::uint64_t row = row0; row < std::min(row0 + launch_.block[1], n); ++row)
                    for (std::uint64_t col = col0; col < std::min(col0 + launch_.block[0], n); ++col) {
                        float sum = 0.0F;
                        for (std::uint64_t k = 0; k < n; ++k) {
                            // Rounded twice, as __fmul_rn and __fadd_rn: built with -ffp-contract=off.
                            const float product = a[row * n + k] * b[k * n + col];
                            sum = sum + product;
                        }
                        c[row * n + col] = sum;
                    }
            }
            return true;
        }
        case Kernel::kWaitFlagU32:
        case Kernel::kCount:
            return true;
    }
    return true;
}

std::optional<bool> KernelRun::released(const AddressSpace& memory) const {
    auto* flag = array<std::uint32_t>(memory, parameter<std::uint64_t>(0), 0, 1);
    if (!flag) return std::nullopt;
    const std::uint32_t seen = std::atomic_ref<std::uint32_t>(*flag).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(seen - parameter<std::uint32_t>(1)) >= 0;
}

}  // namespace emulator
