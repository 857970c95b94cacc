// Memory of every kind.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "feature.hpp"

namespace {

__device__ int in_module[4] = {1, 2, 3, 4};
__managed__ int managed_word = 5;

__global__ void fetches(cudaTextureObject_t texture, float* out) {
    out[threadIdx.x] = tex1Dfetch<float>(texture, threadIdx.x);
}

void module_words() {
    int* where = nullptr;
    std::size_t size = 0;
    CHECK(cudaGetSymbolAddress(reinterpret_cast<void**>(&where), in_module));
    CHECK(cudaGetSymbolSize(&size, in_module));
    add<<<1, 32>>>(where, 4, 10);
    managed_word += 1;
    add<<<1, 32>>>(&managed_word, 1, 10);
    CHECK(cudaDeviceSynchronize());
    int back[4];
    CHECK(cudaMemcpyFromSymbol(back, in_module, sizeof(back)));
    std::printf("%zu: %d %d %d %d, managed %d\n", size, back[0], back[1], back[2], back[3], managed_word);
}

void managed() {
    int* data = nullptr;
    CHECK(cudaMallocManaged(&data, kCount * sizeof(int)));
    for (int at = 0; at < kCount; ++at) data[at] = at & 3;
    CHECK(cudaMemPrefetchAsync(data, kCount * sizeof(int), {cudaMemLocationTypeDevice, 0}, 0));
    add<<<64, 128>>>(data, kCount, 2);
    CHECK(cudaDeviceSynchronize());
    long long sum = 0;
    for (int at = 0; at < kCount; ++at) sum += data[at];
    std::printf("%lld\n", sum);
}

void mapped() {
    int *host = nullptr, *device = nullptr;
    CHECK(cudaHostAlloc(&host, kCount * sizeof(int), cudaHostAllocMapped));
    std::memset(host, 0, kCount * sizeof(int));
    CHECK(cudaHostGetDevicePointer(&device, host, 0));
    add<<<64, 128>>>(device, kCount, 3);
    CHECK(cudaDeviceSynchronize());
    std::vector<int> own(kCount, 1);
    CHECK(cudaHostRegister(own.data(), own.size() * sizeof(int), cudaHostRegisterDefault));
    CHECK(cudaMemcpyAsync(host, own.data(), own.size() * sizeof(int), cudaMemcpyHostToHost));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaHostUnregister(own.data()));
    std::printf("%d %lld\n", host[kCount - 1], total(host));
}

void pools() {
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream));
    cudaMemPool_t pool = nullptr;
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    CHECK(cudaMemPoolCreate(&pool, &properties));
    std::uint64_t keep = UINT64_MAX;
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    long long sum = 0;
    for (int turn = 0; turn < 100; ++turn) {
        int *own = nullptr, *common = nullptr;
        CHECK(cudaMallocFromPoolAsync(reinterpret_cast<void**>(&own), kCount * sizeof(int), pool, stream));
        CHECK(cudaMallocAsync(reinterpret_cast<void**>(&common), kCount * sizeof(int), stream));
        CHECK(cudaMemsetAsync(own, 0, kCount * sizeof(int), stream));
        add<<<64, 128, 0, stream>>>(own, kCount, turn);
        CHECK(cudaMemcpyAsync(common, own, kCount * sizeof(int), cudaMemcpyDeviceToDevice, stream));
        CHECK(cudaStreamSynchronize(stream));
        sum += total(common);
        CHECK(cudaFreeAsync(own, stream));
        CHECK(cudaFreeAsync(common, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemPoolTrimTo(pool, 0));
    CHECK(cudaMemPoolDestroy(pool));
    std::printf("%lld\n", sum);
}

void virtual_memory() {
    CHECK(cudaFree(nullptr));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    std::size_t page = 0;
    CHECK(cuMemGetAllocationGranularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUdeviceptr where = 0;
    CHECK(cuMemAddressReserve(&where, 4 * page, 0, 0, 0));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    for (int each = 0; each < 4; ++each) {
        CUmemGenericAllocationHandle handle = 0;
        CHECK(cuMemCreate(&handle, page, &properties, 0));
        CHECK(cuMemMap(where + each * page, page, 0, handle, 0));
        CHECK(cuMemRelease(handle));
    }
    CHECK(cuMemSetAccess(where, 4 * page, &access, 1));
    const int count = static_cast<int>(4 * page / sizeof(int));
    int* data = reinterpret_cast<int*>(where);
    CHECK(cudaMemset(data, 0, 4 * page));
    add<<<64, 128>>>(data, count, 1);
    std::printf("%lld of %d\n", total(data, count), count);
    CHECK(cuMemUnmap(where, 4 * page));
    CHECK(cuMemAddressFree(where, 4 * page));
}

void texture() {
    std::vector<float> host(64);
    for (int at = 0; at < 64; ++at) host[at] = static_cast<float>(at) / 2;
    float *data = nullptr, *out = nullptr;
    CHECK(cudaMalloc(&data, sizeof(float) * 64));
    CHECK(cudaMalloc(&out, sizeof(float) * 64));
    CHECK(cudaMemcpy(data, host.data(), sizeof(float) * 64, cudaMemcpyHostToDevice));
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear = {data, cudaCreateChannelDesc<float>(), sizeof(float) * 64};
    cudaTextureDesc how{};
    cudaTextureObject_t object = 0;
    CHECK(cudaCreateTextureObject(&object, &resource, &how, nullptr));
    fetches<<<1, 64>>>(object, out);
    CHECK(cudaMemcpy(host.data(), out, sizeof(float) * 64, cudaMemcpyDeviceToHost));
    std::printf("%g %g\n", host[1], host[63]);
}

void arrays() {
    cudaArray_t array = nullptr;
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    CHECK(cudaMalloc3DArray(&array, &format, make_cudaExtent(64, 32, 4)));
    std::size_t pitch = 0;
    void* flat = nullptr;
    CHECK(cudaMallocPitch(&flat, &pitch, 1000, 100));
    cudaPitchedPtr solid{};
    CHECK(cudaMalloc3D(&solid, make_cudaExtent(100, 10, 10)));
    std::printf("%d %d\n", pitch >= 1000, solid.pitch >= 100);
    CHECK(cudaFreeArray(array));
}

// Takes memory until there is no more, twice, and goes on.
void all_memory() {
    std::vector<void*> all;
    for (int turn = 0; turn < 2; ++turn) {
        std::size_t step = std::size_t{1} << 30, here = 0, card = 0;
        CHECK(cudaMemGetInfo(&here, &card));
        std::size_t taken = 0;
        for (void* one = nullptr; step >= (1 << 22); step /= 2) {
            while (cudaMalloc(&one, step) == cudaSuccess) {
                all.push_back(one);
                taken += step;
            }
            if (cudaGetLastError() != cudaErrorMemoryAllocation) std::exit(8);
        }
        std::printf("nearly all %d, within %d\n", taken > here - here / 10, taken <= here);
        for (void* each : all) CHECK(cudaFree(each));
        all.clear();
    }
    int* data = zeros();
    add<<<64, 128>>>(data, kCount, 1);
    std::printf("%lld\n", total(data));
}

// Memory of another process, by its handle.
void between_processes() {
    int there[2], back[2];
    if (pipe(there) != 0 || pipe(back) != 0) std::exit(4);
    const pid_t child = fork();  // before CUDA is started
    if (child == 0) {
        cudaIpcMemHandle_t handle;
        if (read(there[0], &handle, sizeof(handle)) != sizeof(handle)) std::exit(5);
        int* data = nullptr;
        CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&data), handle, cudaIpcMemLazyEnablePeerAccess));
        add<<<64, 128>>>(data, kCount, 4);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaIpcCloseMemHandle(data));
        if (write(back[1], "d", 1) != 1) std::exit(6);
        std::exit(0);
    }
    int* data = zeros();
    cudaIpcMemHandle_t handle;
    CHECK(cudaIpcGetMemHandle(&handle, data));
    if (write(there[1], &handle, sizeof(handle)) != sizeof(handle)) std::exit(7);
    char word = 0;
    const bool came = read(back[0], &word, 1) == 1;
    int status = 0;
    waitpid(child, &status, 0);
    std::printf("%d %d %lld\n", came, status, total(data));
}

const Feature kModuleWords{"module_words", module_words};
const Feature kManaged{"managed", managed};
const Feature kMapped{"mapped", mapped};
const Feature kPools{"pools", pools};
const Feature kVirtualMemory{"virtual_memory", virtual_memory};
const Feature kTexture{"texture", texture};
const Feature kArrays{"arrays", arrays};
const Feature kAllMemory{"all_memory", all_memory};
const Feature kBetweenProcesses{"between_processes", between_processes};

}  // namespace
