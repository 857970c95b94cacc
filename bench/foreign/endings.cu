// Programs that end badly, in the middle, or more than once.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "feature.hpp"

namespace {

__global__ void traps() { __trap(); }

__global__ void faults(int* where) { *where = 1; }

void trap() {
    traps<<<1, 1>>>();
    const cudaError_t said = cudaDeviceSynchronize();
    std::printf("%d %s, then %d\n", said, cudaGetErrorName(said), cudaDeviceSynchronize());
    std::exit(9);
}

void bad_address() {
    faults<<<1, 1>>>(reinterpret_cast<int*>(0x10));
    const cudaError_t said = cudaDeviceSynchronize();
    std::printf("%d %s\n", said, cudaGetErrorName(said));
}

void unfinished() {
    int* done = zeros(1);
    spins<<<1, 1>>>(2'000'000'000, done);
    std::printf("leaves in the middle\n");
    std::fflush(stdout);
    _exit(11);
}

void fork_after() {
    int* data = zeros();
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _exit(cudaMalloc(&data, 64) == cudaSuccess ? 1 : 2);
    int status = 0;
    waitpid(child, &status, 0);
    add<<<64, 128>>>(data, kCount, 1);
    std::printf("%d %lld\n", WEXITSTATUS(status), total(data));
}

void resets() {
    for (int turn = 0; turn < 3; ++turn) {
        int* data = zeros();
        add<<<64, 128>>>(data, kCount, turn + 1);
        std::printf("%lld\n", total(data));
        CHECK(cudaDeviceReset());
    }
}

const Feature kTrap{"trap", trap};
const Feature kBadAddress{"bad_address", bad_address};
const Feature kUnfinished{"unfinished", unfinished};
const Feature kForkAfter{"fork_after", fork_after};
const Feature kResets{"resets", resets};

}  // namespace
