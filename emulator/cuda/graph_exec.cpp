#include "cuda/graph_exec.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/capture.hpp"
#include "cuda/graph_memory.hpp"
#include "cuda/launch.hpp"

namespace emulator::cuda {
namespace {

// Guarded by the driver's lock. Shared: a launch lets the lock go while it waits.
std::map<Exec*, std::shared_ptr<Exec>>& execs() {
    static auto* const all = new std::map<Exec*, std::shared_ptr<Exec>>;  // never destroyed, as the driver
    return *all;
}

std::shared_ptr<Exec> find_exec(CUgraphExec handle) {
    const auto found = execs().find(reinterpret_cast<Exec*>(handle));
    return found == execs().end() ? nullptr : found->second;
}

void CUDA_CB copy_on_host(void* argument) {
    const auto* copy = static_cast<const HostCopy*>(argument);
    std::memmove(copy->to, copy->from, copy->bytes);
}

// Can the device not reach this memory?
bool pageable(std::uint64_t address) {
    unsigned type = 0;
    return address < wire::kDeviceAddressBase &&
           cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS;
}

void add_host_copy(Exec& exec, const Node& node, std::uint64_t to, std::uint64_t from, std::size_t bytes) {
    exec.copies.push_back(
        std::make_unique<HostCopy>(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes));
    exec.steps.push_back({.node = &node, .function = copy_on_host, .argument = exec.copies.back().get()});
}

// Pageable memory is read and written when the copy's turn has come, not when the graph is made: by the host, to and
// from pinned memory of the graph's own.
CUresult add_copy(Exec& exec, const Node& node, const wire::Request& request) {
    const auto [to, from, bytes] = request.copy;
    const bool in = pageable(from);
    const bool out = pageable(to);
    if (in && out) {
        add_host_copy(exec, node, to, from, bytes);
        return CUDA_SUCCESS;
    }
    if (!in && !out) {
        exec.steps.push_back({.node = &node, .request = request});
        return CUDA_SUCCESS;
    }
    void* through = nullptr;
    if (const CUresult result = cuMemHostAlloc(&through, bytes, 0); result != CUDA_SUCCESS) return result;
    exec.pinned.push_back(through);
    const auto address = reinterpret_cast<std::uintptr_t>(through);
    Step step{.node = &node, .request = request};
    (in ? step.request.copy.source : step.request.copy.destination) = address;
    if (in) add_host_copy(exec, node, address, from, bytes);
    exec.steps.push_back(step);
    if (out) add_host_copy(exec, node, to, address, bytes);
    return CUDA_SUCCESS;
}

// Without the lock: the graph is the exec's own.
CUresult add_steps(Exec& exec, const Graph& graph) {
    const std::vector<Node*> order = ordered(graph);
    if (order.size() != graph.nodes.size()) return CUDA_ERROR_INVALID_VALUE;
    for (const Node* node : order) {
        if (node->child)
            if (const CUresult result = add_steps(exec, *node->child); result != CUDA_SUCCESS) return result;
        if (node->host.fn)
            exec.steps.push_back({.node = node, .function = node->host.fn, .argument = node->host.userData});
        if (node->memory)
            (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? exec.allocated : exec.freed).push_back(node->memory);
        for (const wire::Request& request : node->work) {
            if (request.operation != wire::Operation::kCopy)
                exec.steps.push_back({.node = node, .request = request});
            else if (const CUresult result = add_copy(exec, *node, request); result != CUDA_SUCCESS)
                return result;
        }
    }
    return CUDA_SUCCESS;
}

// Waits for the last launch, without the lock.
void wait_for_launch(Driver& driver, const Exec& exec, std::unique_lock<std::mutex>& guard) {
    if (!exec.context || !driver.contexts.contains(exec.context) || is_done(driver, exec.stream, exec.sequence)) return;
    const Context& context = *exec.context;
    guard.unlock();
    wait_for(driver, context, exec.stream, exec.sequence);
    guard.lock();
}

// Allocates what the graph's nodes allocate; all of it or nothing.
CUresult allocate(Driver& driver, Exec& exec) {
    const auto busy = [](const auto& memory) { return memory->in_use; };
    if (!exec.frees_before_launch && std::ranges::any_of(exec.allocated, busy)) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& memory : exec.allocated)
        if (const CUresult result = back_graph_memory(driver, *memory); result != CUDA_SUCCESS) return result;
    return CUDA_SUCCESS;
}

// The state that a launch leaves memory in.
void settle(const Exec& exec) {
    for (const auto& memory : exec.allocated) memory->in_use = true;
    for (const auto& memory : exec.freed) memory->in_use = false;
    for (const auto* all : {&exec.allocated, &exec.freed})
        for (const auto& memory : *all) {
            memory->stream = exec.stream;
            memory->sequence = exec.sequence;
        }
}

CUresult launch(Driver& driver, Exec& exec, CUstream handle, Stream*& stream, std::unique_lock<std::mutex>& guard) {
    if (const CUresult result = begin_work(driver, *stream); result != CUDA_SUCCESS) return result;
    if (exec.context && exec.stream != stream->slot)
        if (const CUresult result = append_wait(driver, *stream, exec.stream, exec.sequence); result != CUDA_SUCCESS)
            return result;
    if (const CUresult result = allocate(driver, exec); result != CUDA_SUCCESS) return result;
    exec.context = stream->context;
    exec.stream = stream->slot;
    exec.sequence = stream->submitted;
    // A graph is queued as a whole, so that nothing comes in between; one longer than a ring fills it bit by bit.
    for (std::size_t i = 0; i < exec.steps.size(); ++i) {
        if (i > 0 && i % wire::kStreamDepth == 0)
            if (const CUresult result = wait_for_room(driver, handle, guard, stream); result != CUDA_SUCCESS)
                return result;
        Step& step = exec.steps[i];
        const CUresult result = step.function ? append_host(driver, *stream, step.function, step.argument)
                                              : append(driver, *stream, step.request);
        if (result != CUDA_SUCCESS) return result;
        exec.sequence = stream->submitted;
    }
    settle(exec);
    return CUDA_SUCCESS;
}

// Are the graphs alike but for what their nodes work on? If not, `result` says why.
bool alike(const Graph& one, const Graph& other, CUgraphExecUpdateResult& result, const Node*& different) {
    result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    different = nullptr;
    if (one.nodes.size() != other.nodes.size()) return false;
    std::map<const Node*, const Node*> same;
    for (std::size_t i = 0; i < one.nodes.size(); ++i) same[one.nodes[i].get()] = other.nodes[i].get();
    for (const auto& [node, twin] : same) {
        different = twin;
        if (node->type != twin->type) {
            result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
            return false;
        }
        const auto has = [&](const Node* need) {
            return std::ranges::find(twin->needs, same[need]) != twin->needs.end();
        };
        if (node->needs.size() != twin->needs.size() || !std::ranges::all_of(node->needs, has)) return false;
        if (node->child && !alike(*node->child, *twin->child, result, different)) return false;
    }
    result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    different = nullptr;
    return true;
}

}  // namespace

Exec::~Exec() {
    for (void* memory : pinned) cuMemFreeHost(memory);
}

CUresult make_exec(Driver& driver, CUgraph handle, std::shared_ptr<Exec>& made) {
    made = std::make_shared<Exec>();
    {
        const std::lock_guard guard(driver.lock);
        const Graph* graph = find_graph(handle);
        if (!graph) return CUDA_ERROR_INVALID_VALUE;
        made->graph = clone(*graph, made->nodes);
    }
    return add_steps(*made, *made->graph);
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
    constexpr unsigned long long kKnown =
        CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
    if (flags & ~kKnown) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Exec> made;
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    guard.unlock();
    const CUresult result = make_exec(driver, graph, made);
    if (result != CUDA_SUCCESS) return result;
    guard.lock();
    made->frees_before_launch = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    *out = reinterpret_cast<CUgraphExec>(made.get());
    execs()[made.get()] = made;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    std::shared_ptr<Exec> exec;  // let go after the lock
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    exec = find_exec(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    Stream* stream = nullptr;
    if (const CUresult result = wait_for_room(driver, stream_handle, guard, stream); result != CUDA_SUCCESS)
        return result;
    if (!stream->capture) return launch(driver, *exec, stream_handle, stream, guard);
    Node* node = nullptr;
    if (const CUresult result = capture_node(*stream, CU_GRAPH_NODE_TYPE_GRAPH, node); result != CUDA_SUCCESS)
        return result;
    std::map<const Node*, Node*> copies;
    node->child = clone(*exec->graph, copies);
    return CUDA_SUCCESS;
}

// A launch has nothing left to prepare here.
CUresult CUDAAPI cuGraphUpload(CUgraphExec handle, CUstream stream) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    if (!find_exec(handle)) return CUDA_ERROR_INVALID_VALUE;
    return find_stream(driver, stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
    std::shared_ptr<Exec> exec;  // let go after the lock
    EMULATOR_ENTER();
    exec = find_exec(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    execs().erase(exec.get());
    if (!exec->copies.empty()) wait_for_launch(driver, *exec, guard);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec handle, CUgraphNode node_handle,
                                                const CUDA_KERNEL_NODE_PARAMS* parameters) {
    std::shared_ptr<Exec> exec;
    EMULATOR_ENTER();
    exec = find_exec(handle);
    const auto* original = reinterpret_cast<const Node*>(node_handle);
    if (!exec || !parameters || !exec->nodes.contains(original)) return CUDA_ERROR_INVALID_VALUE;
    Node& node = *exec->nodes[original];
    if (node.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = set_kernel(node, *parameters); result != CUDA_SUCCESS) return result;
    std::ranges::find(exec->steps, &node, &Step::node)->request = node.work.front();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec handle, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
    std::shared_ptr<Exec> exec;
    std::shared_ptr<Exec> fresh;  // and then what it replaces
    EMULATOR_ENTER();
    exec = find_exec(handle);
    if (!exec || !info) return CUDA_ERROR_INVALID_VALUE;
    *info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    guard.unlock();
    const CUresult made = make_exec(driver, graph, fresh);
    guard.lock();
    if (made != CUDA_SUCCESS) return made;
    const Node* different = nullptr;
    if (!exec->allocated.empty() || !fresh->allocated.empty()) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    if (!alike(*exec->graph, *fresh->graph, info->result, different)) {
        for (const auto& [node, copy] : fresh->nodes)
            if (copy == different) info->errorNode = handle_of(const_cast<Node*>(node));
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    wait_for_launch(driver, *exec, guard);
    // Nodes go on being named by the graph that the exec was made of.
    std::map<const Node*, Node*> twins;
    for (std::size_t i = 0; i < exec->graph->nodes.size(); ++i)
        twins[exec->graph->nodes[i].get()] = fresh->graph->nodes[i].get();
    for (auto& [original, node] : exec->nodes) node = twins.at(node);
    std::swap(exec->graph, fresh->graph);
    std::swap(exec->steps, fresh->steps);
    std::swap(exec->copies, fresh->copies);
    std::swap(exec->pinned, fresh->pinned);
    std::swap(exec->freed, fresh->freed);
    return CUDA_SUCCESS;
}
