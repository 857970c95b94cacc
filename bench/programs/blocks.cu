// Blocks of a chosen length that fill a GPU, and add to what is there: one that ran twice, or not at all, is seen.
extern "C" __global__ void work(unsigned* state, int rounds) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned value = state[i] + i;
    // What counts the rounds is little beside them: a compiler has several ways to count, and some are slower.
#pragma unroll 32
    for (int each = 0; each < rounds; ++each) value = (value ^ value >> 13) * 1664525u + 1013904223u;
    state[i] = value;
}
