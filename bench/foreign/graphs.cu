// Graphs that the program captures, and one that loops on the GPU.
#include <cstdio>

#include "feature.hpp"

namespace {

__global__ void countdown(int* left, cudaGraphConditionalHandle handle) {
    *left -= 1;
    cudaGraphSetConditional(handle, *left > 0 ? 1 : 0);
}

void graphs() {
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream));
    int* data = zeros();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t made = nullptr;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    void* inside = nullptr;
    CHECK(cudaMallocAsync(&inside, kCount * sizeof(int), stream));
    for (int turn = 0; turn < 10; ++turn) add<<<64, 128, 0, stream>>>(data, kCount, 1);
    CHECK(cudaMemcpyAsync(inside, data, kCount * sizeof(int), cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaFreeAsync(inside, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&made, graph, 0));
    for (int turn = 0; turn < 100; ++turn) CHECK(cudaGraphLaunch(made, stream));
    CHECK(cudaStreamSynchronize(stream));
    std::printf("%lld\n", total(data));
    CHECK(cudaGraphExecDestroy(made));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaDeviceGraphMemTrim(0));
}

void while_graph() {
    int* left = zeros(1);
    add<<<1, 1>>>(left, 1, 25);
    int* turns = zeros(1);
    cudaGraph_t graph = nullptr;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    cudaGraphNodeParams parameters = {};
    parameters.type = cudaGraphNodeTypeConditional;
    parameters.conditional.handle = handle;
    parameters.conditional.type = cudaGraphCondTypeWhile;
    parameters.conditional.size = 1;
    cudaGraphNode_t node = nullptr;
    CHECK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &parameters));
    cudaGraph_t body = parameters.conditional.phGraph_out[0];
    cudaStream_t stream = nullptr;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
    add<<<1, 1, 0, stream>>>(turns, 1, 1);
    countdown<<<1, 1, 0, stream>>>(left, handle);
    CHECK(cudaStreamEndCapture(stream, nullptr));
    cudaGraphExec_t made = nullptr;
    CHECK(cudaGraphInstantiate(&made, graph, 0));
    CHECK(cudaGraphLaunch(made, stream));
    CHECK(cudaStreamSynchronize(stream));
    std::printf("%lld turns\n", total(turns, 1));
}

const Feature kGraphs{"graphs", graphs};
const Feature kWhileGraph{"while_graph", while_graph};

}  // namespace
