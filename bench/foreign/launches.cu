// Launches of every kind.
#include <cooperative_groups.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "feature.hpp"

namespace cg = cooperative_groups;

namespace {

__global__ void says() { printf("block %d of %d\n", blockIdx.x, gridDim.x); }

__global__ void together(int* data) {
    cg::grid_group grid = cg::this_grid();
    atomicAdd(&data[0], 1);
    grid.sync();
    if (grid.thread_rank() == 0) data[1] = data[0];
}

__global__ void __cluster_dims__(2, 1, 1) clusters(int* data) {
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync();
    atomicAdd(data, static_cast<int>(cluster.num_blocks()));
}

__global__ void parent(int* data) { add<<<4, 64, 0, cudaStreamTailLaunch>>>(data, 1024, 7); }

void streams() {
    constexpr int kStreams = 32;
    std::vector<cudaStream_t> all(kStreams);
    int* data = zeros();
    int low = 0, high = 0;
    CHECK(cudaDeviceGetStreamPriorityRange(&low, &high));
    for (int each = 0; each < kStreams; ++each) {
        CHECK(cudaStreamCreateWithPriority(&all[each], each % 2 ? cudaStreamNonBlocking : cudaStreamDefault,
                                           each % 3 ? low : high));
    }
    cudaEvent_t before = nullptr;
    for (int turn = 0; turn < 200; ++turn) {  // each after the one before, across streams
        cudaEvent_t event = nullptr;
        CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        cudaStream_t stream = all[turn % kStreams];
        if (before != nullptr) {
            CHECK(cudaStreamWaitEvent(stream, before));
            CHECK(cudaEventDestroy(before));
        }
        add<<<64, 128, 0, stream>>>(data, kCount, 1);
        CHECK(cudaEventRecord(event, stream));
        before = event;
    }
    CHECK(cudaDeviceSynchronize());
    std::printf("%lld, priorities %d to %d\n", total(data), low, high);
}

void threads() {
    std::vector<std::thread> all;
    std::vector<long long> sums(8);
    for (int each = 0; each < 8; ++each) {
        all.emplace_back([each, &sums] {
            int* data = zeros(1 << 16);
            for (int turn = 0; turn < 300; ++turn) add<<<16, 128, 0, cudaStreamPerThread>>>(data, 1 << 16, each + 1);
            CHECK(cudaStreamSynchronize(cudaStreamPerThread));
            sums[each] = total(data, 1 << 16);
            CHECK(cudaFree(data));
        });
    }
    for (std::thread& one : all) one.join();
    for (const long long sum : sums) std::printf("%lld ", sum);
    std::printf("\n");
}

void prints() {
    says<<<4, 1>>>();
    CHECK(cudaDeviceSynchronize());
}

void bad_launch() {
    add<<<1, 4096>>>(nullptr, 0, 0);
    std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    int* data = zeros();
    add<<<1, 64>>>(data, kCount, 1);
    std::printf("%lld\n", total(data));
}

void cooperative() {
    int* data = zeros(2);
    int blocks = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, together, 128, 0));
    void* arguments[] = {&data};
    CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(together), dim3(64), dim3(128), arguments));
    std::printf("%lld, %d a multiprocessor\n", total(data, 2), blocks);
}

void in_clusters() {
    int* data = zeros(1);
    clusters<<<32, 64>>>(data);
    std::printf("%lld\n", total(data, 1));
}

void children() {
    int* data = zeros(1024);
    for (int turn = 0; turn < 20; ++turn) parent<<<1, 1>>>(data);
    std::printf("%lld\n", total(data, 1024));
}

void callbacks() {
    int counter = 0;
    int* data = zeros();
    for (int turn = 0; turn < 50; ++turn) {
        add<<<64, 128>>>(data, kCount, 1);
        CHECK(cudaLaunchHostFunc(0, [](void* where) { ++*static_cast<int*>(where); }, &counter));
        CHECK(cudaStreamAddCallback(
            0, [](cudaStream_t, cudaError_t, void* where) { *static_cast<int*>(where) += 100; }, &counter, 0));
    }
    CHECK(cudaDeviceSynchronize());
    std::printf("%d %lld\n", counter, total(data));
}

void times() {
    cudaEvent_t first = nullptr, second = nullptr;
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&second));
    int* done = zeros(1);
    CHECK(cudaEventRecord(first));
    spins<<<1, 1>>>(20'000'000, done);
    CHECK(cudaEventRecord(second));
    const bool busy = cudaEventQuery(second) == cudaErrorNotReady;
    CHECK(cudaEventSynchronize(second));
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, first, second));
    std::printf("%d %d\n", busy, milliseconds > 5);
}

const Feature kStreams{"streams", streams};
const Feature kThreads{"threads", threads};
const Feature kPrints{"prints", prints};
const Feature kBadLaunch{"bad_launch", bad_launch};
const Feature kCooperative{"cooperative", cooperative};
const Feature kClusters{"clusters", in_clusters};
const Feature kChildren{"children", children};
const Feature kCallbacks{"callbacks", callbacks};
const Feature kTimes{"times", times};

}  // namespace
