// Limits of single GPUs, which the environment of a program gives by their numbers. A GPU's limits go to its entry in
// the region before the program can use it, unless somebody gave it others before.
#pragma once

#include <cstdlib>

#include "environment/options.hpp"
#include "hooks/memory.hpp"
#include "protocol/environment.autogen.hpp"

namespace runlist::hooks {

extern constinit bool has_own_limits;

void set_own_limits(const environment::Options& options);  // before other threads are there

// The number that CUDA and NVML give a GPU among those that the process may use, as if CUDA_VISIBLE_DEVICES hid none;
// of the one that CUDA calls `ordinal` under CUDA_VISIBLE_DEVICES. Where that has UUIDs, the ordinal.
int number_of(int ordinal, const char* visible);

// Gives the GPU of that number its limits in the region, where it has the index `device`.
void apply_own_limits(int device, int number);

template <Id id, int row, typename Type = typename Function<id>::Type>
struct Init;

template <Id id, int row>
struct Init<id, row, CUresult(unsigned)> {
    static CUresult CUDAAPI call(unsigned flags) {
        const CUresult result = call_real<id, row>(flags);
        int count = 0;
        if (result != CUDA_SUCCESS || !has_own_limits) return result;
        if (call_real<Id::cuDeviceGetCount, row>(&count) != CUDA_SUCCESS) return result;
        const char* visible = ::getenv(names::kVisibleDevices);
        for (int ordinal = 0; ordinal < count; ++ordinal) {
            apply_own_limits(device_of<row>(ordinal), number_of(ordinal, visible));
        }
        return result;
    }
};

}  // namespace runlist::hooks
