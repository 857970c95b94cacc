// cuInit, versions, errors, and the driver's life.
#include <pthread.h>

#include <atomic>

#include "cuda/driver.hpp"

namespace emulator::cuda {
namespace {

std::atomic<Driver*> the_driver{nullptr};
std::mutex initializing;

void forget_in_child() { the_driver.store(nullptr); }
std::atomic<bool> in_child{false};

}  // namespace

Driver* Driver::get() { return the_driver.load(std::memory_order_acquire); }

CUresult Driver::initialize() {
    if (in_child.load()) return CUDA_ERROR_NOT_INITIALIZED;
    const std::lock_guard guard(initializing);
    if (the_driver.load()) return CUDA_SUCCESS;
    auto driver = std::make_unique<Driver>();
    if (const CUresult result = driver->connection.open(); result != CUDA_SUCCESS) return result;
    driver->primaries.resize(driver->connection.gpus());
    // A child shares the parent's sockets but not its place in the conversation: it must not touch them.
    ::pthread_atfork(nullptr, nullptr, [] {
        forget_in_child();
        in_child.store(true);
    });
    the_driver.store(driver.release(), std::memory_order_release);
    return CUDA_SUCCESS;
}

}  // namespace emulator::cuda

using emulator::cuda::Driver;

CUresult CUDAAPI cuInit(unsigned flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return Driver::initialize();
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
    constexpr int kVersion = 13000;  // what a driver 580 reports
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = kVersion;
    return CUDA_SUCCESS;
}
