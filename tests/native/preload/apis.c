/* Takes memory by every API until it is refused, gives all of it back and takes some again. One line an API:
   `NAME REFUSED COUNT BEFORE PEAK AFTER AGAIN`: the code of the refusal, how many pieces there was room for, the bytes
   in use before, with all of them and after, and the code of one more piece; or `NAME not-here`. */
#include <unistd.h>

#include "guest.h"

enum { kMost = 4096 };

static size_t piece;
static CUstream stream;

union Piece {
    CUdeviceptr address;
    CUarray array;
    CUmipmappedArray mipmap;
    CUmemGenericAllocationHandle handle;
    CUgraphExec graph;
    CUcontext context;
};

static CUresult take_linear(union Piece* one) { return cuMemAlloc(&one->address, piece); }
static CUresult give_linear(union Piece* one) { return cuMemFree(one->address); }

static CUresult take_pitch(union Piece* one) {
    size_t pitch;
    return cuMemAllocPitch(&one->address, &pitch, 65536, piece / 65536, 16);
}

static CUresult take_managed(union Piece* one) { return cuMemAllocManaged(&one->address, piece, CU_MEM_ATTACH_GLOBAL); }

static CUresult take_async(union Piece* one) {
    const CUresult result = cuMemAllocAsync(&one->address, piece, stream);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(stream) : result;
}

static CUresult give_async(union Piece* one) { return cuMemFreeAsync(one->address, stream); }

static CUmemoryPool pool;

static CUresult take_pool(union Piece* one) {
    if (pool == NULL) {
        const CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
        const CUresult made = cuMemPoolCreate(&pool, &wanted);
        if (made != CUDA_SUCCESS) return made;
    }
    const CUresult result = cuMemAllocFromPoolAsync(&one->address, piece, pool, stream);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(stream) : result;
}

static CUresult take_physical(union Piece* one) {
    const CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    return cuMemCreate(&one->handle, piece, &wanted, 0);
}

static CUresult give_physical(union Piece* one) { return cuMemRelease(one->handle); }

static CUresult take_array(union Piece* one) {
    const CUDA_ARRAY_DESCRIPTOR wanted = {
        .Width = 8192, .Height = piece / 32768, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    return cuArrayCreate(&one->array, &wanted);
}

static CUresult take_array3d(union Piece* one) {
    const CUDA_ARRAY3D_DESCRIPTOR wanted = {
        .Width = 1024, .Height = 512, .Depth = piece >> 21, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    return cuArray3DCreate(&one->array, &wanted);
}

static CUresult give_array(union Piece* one) { return cuArrayDestroy(one->array); }

static CUresult take_mipmap(union Piece* one) {
    const CUDA_ARRAY3D_DESCRIPTOR wanted = {
        .Width = 8192, .Height = piece / 32768, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    return cuMipmappedArrayCreate(&one->mipmap, &wanted, 2);
}

static CUresult give_mipmap(union Piece* one) { return cuMipmappedArrayDestroy(one->mipmap); }

static CUresult take_graph(union Piece* one) {
    CUgraph graph;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
                                         .bytesize = piece};
    CUresult result = cuGraphCreate(&graph, 0);
    if (result != CUDA_SUCCESS) return result;
    result = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted);
    if (result == CUDA_SUCCESS) result = cuGraphInstantiate(&one->graph, graph, 0);
    cuGraphDestroy(graph);
    if (result != CUDA_SUCCESS) return result;
    result = cuGraphLaunch(one->graph, stream);
    if (result == CUDA_SUCCESS) result = cuStreamSynchronize(stream);
    if (result != CUDA_SUCCESS) {
        cuGraphExecDestroy(one->graph);
        return result;
    }
    /* The memory outlives the graph, until it is freed as any other. */
    const CUdeviceptr address = wanted.dptr;
    cuGraphExecDestroy(one->graph);
    one->address = address;
    return CUDA_SUCCESS;
}

static CUresult give_graph(union Piece* one) {
    const CUresult result = cuMemFree(one->address);
    cuDeviceGraphMemTrim(0);
    return result;
}

static const struct Api {
    const char* name;
    CUresult (*take)(union Piece*);
    CUresult (*give)(union Piece*);
} kApis[] = {
    {"cuMemAlloc", take_linear, give_linear},
    {"cuMemAllocPitch", take_pitch, give_linear},
    {"cuMemAllocManaged", take_managed, give_linear},
    {"cuMemAllocAsync", take_async, give_async},
    {"cuMemAllocFromPoolAsync", take_pool, give_async},
    {"cuMemCreate", take_physical, give_physical},
    {"cuArrayCreate", take_array, give_array},
    {"cuArray3DCreate", take_array3d, give_array},
    {"cuMipmappedArrayCreate", take_mipmap, give_mipmap},
    {"cuGraphLaunch", take_graph, give_graph},
};

/* What pools keep of memory that was given back. */
static void trim(void) {
    CUmemoryPool standard;
    cuStreamSynchronize(stream);
    if (cuDeviceGetDefaultMemPool(&standard, 0) == CUDA_SUCCESS) cuMemPoolTrimTo(standard, 0);
    if (pool != NULL) cuMemPoolTrimTo(pool, 0);
}

static void all_of(const struct Api* api) {
    static union Piece pieces[kMost];
    union Piece more;
    int count = 0;
    const size_t before = used();
    CUresult refused = CUDA_SUCCESS;
    while (count < kMost && (refused = api->take(&pieces[count])) == CUDA_SUCCESS) ++count;
    const size_t peak = used();
    for (int index = 0; index < count; ++index) MUST(api->give(&pieces[index]));
    trim();
    const size_t after = used();
    const CUresult again = api->take(&more);
    if (again == CUDA_SUCCESS) MUST(api->give(&more));
    trim();
    printf("%s %d %d %zu %zu %zu %d\n", api->name, (int)refused, count, before, peak, after, (int)again);
}

/* apis PIECE: bytes of a piece, a multiple of 2 MiB. */
int main(int count, char** words) {
    piece = count > 1 ? strtoull(words[1], NULL, 0) : 256 * kMiB;
    begin();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    union Piece first;
    for (size_t index = 0; index < sizeof(kApis) / sizeof(*kApis); ++index) { /* what they set up once is not counted */
        if (kApis[index].take(&first) == CUDA_SUCCESS) MUST(kApis[index].give(&first));
    }
    trim();
    for (size_t index = 0; index < sizeof(kApis) / sizeof(*kApis); ++index) all_of(&kApis[index]);
    return 0;
}
