// The device code of Runlist's own GPU programs.
//
// Every kernel has a twin in the emulated GPU, so its meaning is kept simple enough to be checked bit for bit on the host.
// `tools/make_ptx` turns this file into kernels.autogen.ptx, which the driver compiles for the GPU it finds.
#include <cstdint>

extern "C" {

// out[i] = value for every i < n.
__global__ void fill_u32(uint32_t* out, uint32_t value, uint64_t n) {
    const uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[i] = value;
}

// c[i] = a[i] + b[i] for every i < n.
__global__ void vector_add_f32(const float* a, const float* b, float* c, uint64_t n) {
    const uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

// Advances a linear congruential generator per element, in place: x = x * 1664525 + 1013904223 (mod 2^32), `rounds` times.
// Not idempotent: a block that ran twice, or not at all, leaves a wrong number. `rounds` sets how long the kernel takes.
__global__ void accumulate_lcg(uint32_t* state, uint64_t n, uint32_t rounds) {
    const uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t x = state[i];
#pragma unroll 1  // one dependent multiply-add a round, so that time is linear in rounds
    for (uint32_t r = 0; r < rounds; ++r) x = x * 1664525u + 1013904223u;
    state[i] = x;
}

// c = a * b for row-major n x n matrices; one thread an element, summed in order of k.
__global__ void matmul_f32(const float* a, const float* b, float* c, uint32_t n) {
    const uint32_t row = blockIdx.y * blockDim.y + threadIdx.y;
    const uint32_t col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || col >= n) return;
    float sum = 0.0f;
    for (uint32_t k = 0; k < n; ++k) sum = __fadd_rn(sum, __fmul_rn(a[row * n + k], b[k * n + col]));
    c[row * n + col] = sum;
}

// Holds its stream until the host writes *flag >= value (wrapping) to mapped host memory.
__global__ void wait_flag_u32(const volatile uint32_t* flag, uint32_t value) {
    while (int32_t(*flag - value) < 0) {
    }
}

}  // extern "C"
