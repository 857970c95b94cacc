// The simulated GPU under a cap, and one program's launches on it.
#pragma once

#include <atomic>
#include <cstdint>

#include "cap/context.hpp"
#include "cap/gate.hpp"
#include "region/region.hpp"
#include "simulated_gpu.hpp"

namespace capped {

using namespace simulated;
using namespace runlist;

inline region::Limit cap_limit{};
inline region::Limit own_cap{};  // the GPU's
inline std::atomic<std::uint64_t> next_turn{};
inline std::atomic<std::uint64_t> gpu_ns{};
inline const cap::Calls driver = calls();

inline CUstream stream(int number) {
    return reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(0x1000 * (number + 1)));
}

inline const void* kind(int number) {
    return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(0x5'0000 + 64 * number));
}

inline void sleep(Nanoseconds length) { gpu.now += length + kLateWake; }

inline void set_cap(std::uint64_t percent, region::Limit& limit = cap_limit) {
    region::write(limit, percent == 0 ? region::kNoLimit : percent * 100);
}

inline void launch(CUstream on, Nanoseconds length, int work, Nanoseconds host = kLaunch) {
    if (!cap::on()) return gpu.launch(on, length, host);
    cap::Turn turn(driver, on, false, kind(work));
    gpu.launch(on, length, host);
    turn.launched(true);
}

inline void begin(std::uint64_t percent) {
    cap::destroyed(gpu.current);
    gpu = Gpu{};
    next_turn = gpu_ns = 0;
    own_cap.value = own_cap.check = 0;
    set_cap(percent);
}

}  // namespace capped
