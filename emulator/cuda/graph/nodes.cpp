// Adding nodes to graphs, and what kernel nodes are asked.
#include "cuda/graph/nodes.hpp"

#include <span>

#include "cuda/driver/driver.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/graph/graph.hpp"
#include "cuda/kernel/launch.hpp"
#include "cuda/kernel/module.hpp"
#include "cuda/memory/array.hpp"
#include "cuda/memory/graph.hpp"
#include "cuda/memory/shape.hpp"

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
    return node && node->task.type == CU_GRAPH_NODE_TYPE_KERNEL ? node : nullptr;
}

}  // namespace

CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& parameters, Task& made) {
    const Shape shape{{parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ},
                      {parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ},
                      parameters.sharedMemBytes};
    made.type = CU_GRAPH_NODE_TYPE_KERNEL;
    return make_launch(parameters.func, shape, parameters.kernelParams, parameters.extra, made);
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS* parameters) {
    EMULATOR_ENTER();
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    Node node;
    EMULATOR_TRY(make_kernel(*parameters, node.task));
    return add(out, graph, needs, count, std::move(node));
}

CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* out) {
    EMULATOR_ENTER();
    Node* node = find_kernel(handle);
    const Function* function = node ? find_function(node->task.function) : nullptr;
    if (!function || !out) return CUDA_ERROR_INVALID_VALUE;
    wire::KernelLaunch& launch = node->task.work.front().launch;
    node->values.clear();
    for (const std::uint32_t offset : function->parameter_offsets) node->values.push_back(launch.parameters + offset);
    *out = {.func = node->task.function,
            .gridDimX = launch.grid[0],
            .gridDimY = launch.grid[1],
            .gridDimZ = launch.grid[2],
            .blockDimX = launch.block[0],
            .blockDimY = launch.block[1],
            .blockDimZ = launch.block[2],
            .sharedMemBytes = node->task.shared_bytes,
            .kernelParams = node->values.data()};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS* parameters) {
    EMULATOR_ENTER();
    Node* node = find_kernel(handle);
    return node && parameters ? make_kernel(*parameters, node->task) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                      const CUDA_MEMCPY3D* parameters, CUcontext) {
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D copy = *parameters;
    EMULATOR_TRY(resolve_arrays(copy));
    EMULATOR_ENTER();
    Node node{.task = {.type = CU_GRAPH_NODE_TYPE_MEMCPY}};
    EMULATOR_TRY(copies_of(copy, node.task.work));
    return add(out, graph, needs, count, std::move(node));
}

CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                      const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext) {
    EMULATOR_ENTER();
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    Node node{.task = {.type = CU_GRAPH_NODE_TYPE_MEMSET}};
    EMULATOR_TRY(fills_of(*parameters, node.task.work));
    return add(out, graph, needs, count, std::move(node));
}

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                    const CUDA_HOST_NODE_PARAMS* parameters) {
    EMULATOR_ENTER();
    if (!parameters || !parameters->fn) return CUDA_ERROR_INVALID_VALUE;
    return add(out, graph, needs, count, {.task = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = *parameters}});
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count) {
    EMULATOR_ENTER();
    return add(out, graph, needs, count, {.task = {.type = CU_GRAPH_NODE_TYPE_EMPTY}});
}

CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                           CUevent event) {
    EMULATOR_ENTER();
    if (!named(objects().events, event)) return no_such_handle();
    return add(out, graph, needs, count, {.task = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .event = event}});
}

CUresult CUDAAPI cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                         CUevent event) {
    EMULATOR_ENTER();
    if (!named(objects().events, event)) return no_such_handle();
    return add(out, graph, needs, count, {.task = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .event = event}});
}

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                          CUgraph child_handle) {
    EMULATOR_ENTER();
    const Graph* child = find_graph(child_handle);
    if (!child) return CUDA_ERROR_INVALID_VALUE;
    std::map<const Node*, Node*> copies;
    return add(out, graph, needs, count, {.task = {.type = CU_GRAPH_NODE_TYPE_GRAPH}, .child = clone(*child, copies)});
}

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                        CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
    EMULATOR_ENTER();
    if (!parameters) return CUDA_ERROR_INVALID_VALUE;
    const CUmemPoolProps& pool = parameters->poolProps;
    if (pool.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!driver.has(pool.location.id)) return CUDA_ERROR_INVALID_DEVICE;
    Node node{.task = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC}};
    const auto gpu = static_cast<std::uint32_t>(pool.location.id);
    CUresult result = reserve_graph_memory(driver, gpu, parameters->bytesize, node.task.memory);
    if (result != CUDA_SUCCESS) return result;
    const std::uint64_t address = node.task.memory->address;
    result = add(out, graph, needs, count, std::move(node));
    if (result == CUDA_SUCCESS) parameters->dptr = address;
    return result;
}

CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* needs, std::size_t count,
                                       CUdeviceptr address) {
    EMULATOR_ENTER();
    std::shared_ptr<GraphMemory> memory = find_graph_memory(address);
    if (!memory) return CUDA_ERROR_INVALID_VALUE;
    return add(out, graph, needs, count, {.task = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .memory = std::move(memory)}});
}
