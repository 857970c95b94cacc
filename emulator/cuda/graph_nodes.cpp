// Adding nodes to graphs, and what kernel nodes are asked.
#include <span>

#include "cuda/graph.hpp"
#include "cuda/graph_memory.hpp"
#include "cuda/launch.hpp"
#include "cuda/memory.hpp"
#include "cuda/shapes.hpp"

namespace emulator::cuda {
namespace {

// Adds a finished node behind those it needs.
CUresult add(CUgraphNode* out, CUgraph handle, const CUgraphNode* needs, std::size_t count, Node node) {
    Graph* graph = find_graph(handle);
    if (!out || !graph || (count > 0 && !needs)) return CUDA_ERROR_INVALID_VALUE;
    for (const CUgraphNode need : std::span(needs, count)) {
        Node* before = find_node(need);
        if (!before || before->graph != graph) return CUDA_ERROR_INVALID_VALUE;
        node.needs.push_back(before);
    }
    *out = handle_of(&graph->add(std::move(node)));
    return CUDA_SUCCESS;
}

Node* find_kernel(CUgraphNode handle) {
    Node* node = find_node(handle);
    return node && node->type == CU_GRAPH_NODE_TYPE_KERNEL ? node : nullptr;
}

}  // namespace

CUresult set_kernel(Node& node, const CUDA_KERNEL_NODE_PARAMS& parameters) {
    const Function* function = find_function(parameters.func);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    const Shape shape{{parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ},
                      {parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ},
                      parameters.sharedMemBytes};
    wire::Request request{};
    const CUresult result = make_launch(*function, shape, parameters.kernelParams, parameters.extra, request);
    if (result != CUDA_SUCCESS) return result;
    node.work = {request};
    node.function = function;
    node.shared_bytes = shape.shared_bytes;
    return CUDA_SUCCESS;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS* parameters) {
    EMULATOR_ENTER();
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    Node node{.type = CU_GRAPH_NODE_TYPE_KERNEL};
    if (const CUresult result = set_kernel(node, *parameters); result != CUDA_SUCCESS) return result;
    return add(out, graph, needs, count, std::move(node));
}

CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* out) {
    EMULATOR_ENTER();
    Node* node = find_kernel(handle);
    if (!node || !out || !find_function(node->function)) return CUDA_ERROR_INVALID_VALUE;
    wire::KernelLaunch& launch = node->work.front().launch;
    node->values.clear();
    for (const std::uint32_t offset : node->function->parameter_offsets)
        node->values.push_back(launch.parameters + offset);
    *out = {.func = reinterpret_cast<CUfunction>(const_cast<Function*>(node->function)),
            .gridDimX = launch.grid[0],
            .gridDimY = launch.grid[1],
            .gridDimZ = launch.grid[2],
            .blockDimX = launch.block[0],
            .blockDimY = launch.block[1],
            .blockDimZ = launch.block[2],
            .sharedMemBytes = node->shared_bytes,
            .kernelParams = node->values.data()};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS* parameters) {
    EMULATOR_ENTER();
    Node* node = find_kernel(handle);
    return node && parameters ? set_kernel(*node, *parameters) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                      const CUDA_MEMCPY3D* parameters, CUcontext) {
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D copy = *parameters;
    if (const CUresult result = resolve_arrays(copy); result != CUDA_SUCCESS) return result;
    EMULATOR_ENTER();
    Node node{.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    if (const CUresult result = copies_of(copy, node.work); result != CUDA_SUCCESS) return result;
    return add(out, graph, needs, count, std::move(node));
}

CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                      const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext) {
    EMULATOR_ENTER();
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    Node node{.type = CU_GRAPH_NODE_TYPE_MEMSET};
    if (const CUresult result = fills_of(*parameters, node.work); result != CUDA_SUCCESS) return result;
    return add(out, graph, needs, count, std::move(node));
}

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                    const CUDA_HOST_NODE_PARAMS* parameters) {
    EMULATOR_ENTER();
    if (!parameters || !parameters->fn) return CUDA_ERROR_INVALID_VALUE;
    return add(out, graph, needs, count, {.type = CU_GRAPH_NODE_TYPE_HOST, .host = *parameters});
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count) {
    EMULATOR_ENTER();
    return add(out, graph, needs, count, {.type = CU_GRAPH_NODE_TYPE_EMPTY});
}

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                          CUgraph child_handle) {
    EMULATOR_ENTER();
    const Graph* child = find_graph(child_handle);
    if (!child) return CUDA_ERROR_INVALID_VALUE;
    std::map<const Node*, Node*> copies;
    return add(out, graph, needs, count, {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = clone(*child, copies)});
}

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                        CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
    EMULATOR_ENTER();
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    const CUmemPoolProps& pool = parameters->poolProps;
    if (pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool.location.id < 0 || static_cast<std::size_t>(pool.location.id) >= driver.primaries.size())
        return CUDA_ERROR_INVALID_DEVICE;
    Node node{.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    const auto gpu = static_cast<std::uint32_t>(pool.location.id);
    CUresult result = reserve_graph_memory(driver, gpu, parameters->bytesize, node.memory);
    if (result != CUDA_SUCCESS) return result;
    const std::uint64_t address = node.memory->address;
    result = add(out, graph, needs, count, std::move(node));
    if (result == CUDA_SUCCESS) parameters->dptr = address;
    return result;
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                       CUdeviceptr address) {
    EMULATOR_ENTER();
    std::shared_ptr<GraphMemory> memory = find_graph_memory(address);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    return add(out, graph, needs, count, {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory = std::move(memory)});
}
