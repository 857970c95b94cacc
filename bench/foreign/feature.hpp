// What the features share: a name by which each is run, and some work for the GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                          \
    do {                                                     \
        if (const int code = static_cast<int>(call); code) { \
            std::printf("%s: error %d\n", #call, code);      \
            std::exit(3);                                    \
        }                                                    \
    } while (0)

// One that `features NAME` runs. It prints what came out, and ends as the feature has it.
struct Feature {
    Feature(const char* name, void (*run)());
};

inline constexpr int kCount = 1 << 20;

__global__ void add(int* data, int count, int what);
__global__ void spins(long long cycles, int* done);

// So many words of the GPU's memory, each 0; and their sum.
int* zeros(int count = kCount);
long long total(const int* device, int count = kCount);
