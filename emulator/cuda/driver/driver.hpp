// What one process knows of its emulated GPUs: the connection, and the lock that guards all that CUDA's handles name.
//
// Nothing waits for the GPU with the lock held. The driver is made by cuInit and never destroyed, so that calls from
// exit handlers and late threads find it. A child made by fork has none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>

#include "cuda/driver/connection.hpp"
#include "cuda/driver/exports.hpp"

namespace emulator::cuda {

// What a part of the library keeps, one of a kind. Guarded by the driver's lock, and never destroyed, as the driver.
template <typename T>
T& kept() {
    static auto* const only = new T;
    return *only;
}

// The one of `known` that a handle names; nullptr when it names none.
template <typename T>
T* named(const std::set<T*>& known, const void* handle) {
    auto* one = static_cast<T*>(const_cast<void*>(handle));
    return known.contains(one) ? one : nullptr;
}

// Never given twice in a process.
inline std::uint64_t new_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

inline std::uint64_t whole_pages(std::uint64_t bytes) {
    return (bytes + wire::kPageBytes - 1) / wire::kPageBytes * wire::kPageBytes;
}

class Driver {
  public:
    // nullptr before cuInit, and in a forked child.
    static Driver* get();
    static CUresult initialize();

    bool has(int device) const { return device >= 0 && static_cast<std::uint32_t>(device) < connection.gpus(); }

    std::mutex lock;
    Connection connection;
    RmClient& rm = connection.rm;

    // Set by who keeps memory for later. A GPU has no more: gives back all that nothing uses. Was there any?
    std::function<bool(std::uint32_t gpu)> on_full = [](std::uint32_t) { return false; };
    // Work was waited for: gives back what is more than it is to keep.
    std::function<void()> on_synchronized = [] {};
};

}  // namespace emulator::cuda

// Opens an entry point: the driver as `driver` and its lock as `guard`.
#define EMULATOR_ENTER()                                                   \
    emulator::cuda::Driver* const entered = emulator::cuda::Driver::get(); \
    if (!entered) return CUDA_ERROR_NOT_INITIALIZED;                       \
    emulator::cuda::Driver& driver = *entered;                             \
    std::unique_lock guard(driver.lock)

// Goes on if the call succeeds, and returns its result otherwise.
#define EMULATOR_TRY(...) \
    if (const CUresult tried = __VA_ARGS__; tried != CUDA_SUCCESS) return tried
