// Contexts beside the primary one.
#include <cuda.h>

#include <cstdio>
#include <vector>

#include "feature.hpp"

namespace {

void contexts() {
    CHECK(cuInit(0));
    CUdevice device = 0;
    CHECK(cuDeviceGet(&device, 0));
    std::vector<CUcontext> all(6);
    std::vector<int*> data(6);
    for (int each = 0; each < 6; ++each) {
        CHECK(cuCtxCreate(&all[each], nullptr, 0, device));
        data[each] = zeros();
    }
    for (int turn = 0; turn < 60; ++turn) {
        CHECK(cuCtxSetCurrent(all[turn % 6]));
        add<<<64, 128>>>(data[turn % 6], kCount, turn);
    }
    for (int each = 0; each < 6; ++each) {
        CHECK(cuCtxSetCurrent(all[each]));
        std::printf("%lld\n", total(data[each]));
        CHECK(cuCtxDestroy(all[each]));
    }
}

void green() {
    CHECK(cudaFree(nullptr));
    CUdevResource all{}, part{};
    CHECK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    unsigned groups = 1;
    CHECK(cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 16));
    CUdevResourceDesc description = nullptr;
    CHECK(cuDevResourceGenerateDesc(&description, &part, 1));
    CUgreenCtx context = nullptr;
    CHECK(cuGreenCtxCreate(&context, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CUstream stream = nullptr;
    CHECK(cuGreenCtxStreamCreate(&stream, context, CU_STREAM_NON_BLOCKING, 0));
    int* data = zeros();
    CHECK(cudaDeviceSynchronize());
    add<<<64, 128, 0, stream>>>(data, kCount, 1);
    CHECK(cuStreamSynchronize(stream));
    std::printf("%u of it: %lld\n", part.sm.smCount, total(data));
    CHECK(cuGreenCtxDestroy(context));
}

const Feature kContexts{"contexts", contexts};
const Feature kGreen{"green", green};

}  // namespace
