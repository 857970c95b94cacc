// cuInit, the driver's version, and its life.
#include "cuda/driver/driver.hpp"

#include <pthread.h>

#include <memory>

#include "shared/versions.hpp"

namespace emulator::cuda {
namespace {

std::atomic<Driver*> the_driver{nullptr};
std::atomic<bool> in_child{false};
std::mutex initializing;

}  // namespace

Driver* Driver::get() { return the_driver.load(std::memory_order_acquire); }

CUresult Driver::initialize() {
    if (in_child.load()) return CUDA_ERROR_NOT_INITIALIZED;
    const std::lock_guard guard(initializing);
    if (the_driver.load()) return CUDA_SUCCESS;
    auto driver = std::make_unique<Driver>();
    if (const CUresult result = driver->connection.open(); result != CUDA_SUCCESS) return result;
    // A child shares the parent's sockets but not its place in the conversation: it must not touch them.
    ::pthread_atfork(nullptr, nullptr, [] {
        the_driver.store(nullptr);
        in_child.store(true);
    });
    the_driver.store(driver.release(), std::memory_order_release);
    return CUDA_SUCCESS;
}

}  // namespace emulator::cuda

CUresult CUDAAPI cuInit(unsigned flags) {
    return flags == 0 ? emulator::cuda::Driver::initialize() : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = emulator::kCudaVersion;
    return CUDA_SUCCESS;
}
