// Graphs made ready to launch: a copy of the graph, and its operations in the order in which a stream does them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/execution/capture.hpp"
#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/execution/stream.hpp"
#include "cuda/graph/capture.hpp"
#include "cuda/graph/graph.hpp"
#include "cuda/graph/nodes.hpp"
#include "cuda/memory/graph.hpp"
#include "cuda/memory/host.hpp"
#include "cuda/memory/space.hpp"

namespace emulator::cuda {
namespace {

// One operation of a stream: a request, a host function, or something with an event.
struct Step {
    const Node* node;
    wire::Request request = {};
    CUDA_HOST_NODE_PARAMS host = {};
    CUevent event = nullptr;
};

// A copy that the host does in its turn, for memory that the device cannot reach.
struct HostCopy {
    void* to;
    const void* from;
    std::size_t bytes;
};

struct Exec {
    std::unique_ptr<Graph> graph;
    std::map<const Node*, Node*> nodes;  // of the graph that it was made of, and where they are in its own
    std::vector<Step> steps;
    std::vector<std::shared_ptr<GraphMemory>> allocated;  // by its nodes
    std::vector<std::shared_ptr<GraphMemory>> freed;
    bool frees_before_launch = false;               // what an earlier launch has left allocated
    std::vector<std::unique_ptr<HostCopy>> copies;  // arguments of steps
    std::vector<void*> pinned;                      // memory that the copies go through
    // The last launch: launches of one graph come one after the other.
    Context* context = nullptr;
    Point last = {};

    Exec() = default;
    Exec(const Exec&) = delete;
    Exec& operator=(const Exec&) = delete;
    // Without the driver's lock.
    ~Exec() {
        for (void* memory : pinned) cuMemFreeHost(memory);
        Driver* driver = Driver::get();
        if (!driver) return;
        const std::lock_guard guard(driver->lock);
        graph.reset();
    }
};

// Shared: a launch lets the lock go while it waits.
using Execs = std::map<Exec*, std::shared_ptr<Exec>>;
Execs& execs() { return kept<Execs>(); }

std::shared_ptr<Exec> find_exec(CUgraphExec handle) {
    const auto found = execs().find(reinterpret_cast<Exec*>(handle));
    return found == execs().end() ? nullptr : found->second;
}

void CUDA_CB copy_on_host(void* argument) {
    const auto* copy = static_cast<const HostCopy*>(argument);
    std::memmove(copy->to, copy->from, copy->bytes);
}

void add_host_copy(Exec& exec, const Node& node, std::uint64_t to, std::uint64_t from, std::size_t bytes) {
    exec.copies.push_back(
        std::make_unique<HostCopy>(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes));
    exec.steps.push_back({.node = &node, .host = {copy_on_host, exec.copies.back().get()}});
}

// Pageable memory is read and written when the copy's turn has come, not when the graph is made: by the host, to and
// from pinned memory of the graph's own.
CUresult add_copy(Driver& driver, Exec& exec, const Node& node, const wire::Request& request) {
    const auto pageable = [&driver](std::uint64_t address) {
        const std::lock_guard guard(driver.lock);
        return !is_device(address) && !is_pinned(address, 1);
    };
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
    EMULATOR_TRY(cuMemHostAlloc(&through, bytes, 0));
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
CUresult add_steps(Driver& driver, Exec& exec, const Graph& graph) {
    const std::vector<Node*> order = ordered(graph);
    if (order.size() != graph.nodes.size()) return CUDA_ERROR_INVALID_VALUE;
    for (const Node* node : order) {
        const Task& task = node->task;
        if (node->child) EMULATOR_TRY(add_steps(driver, exec, *node->child));
        if (task.event) exec.steps.push_back({.node = node, .event = task.event});
        if (task.host.fn) exec.steps.push_back({.node = node, .host = task.host});
        if (task.memory)
            (task.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? exec.allocated : exec.freed).push_back(task.memory);
        for (const wire::Request& request : task.work) {
            if (request.operation != wire::Operation::kCopy)
                exec.steps.push_back({.node = node, .request = request});
            else
                EMULATOR_TRY(add_copy(driver, exec, *node, request));
        }
    }
    return CUDA_SUCCESS;
}

void wait_for_launch(Driver& driver, const Exec& exec, std::unique_lock<std::mutex>& guard) {
    if (exec.context && objects().contexts.contains(exec.context)) wait_for(driver, *exec.context, exec.last, guard);
}

// Allocates what the graph's nodes allocate; all of it or nothing.
CUresult allocate(Driver& driver, Exec& exec) {
    const auto busy = [](const auto& memory) { return memory->in_use; };
    if (!exec.frees_before_launch && std::ranges::any_of(exec.allocated, busy)) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& memory : exec.allocated) EMULATOR_TRY(back_graph_memory(driver, *memory));
    return CUDA_SUCCESS;
}

// The state that a launch leaves memory in.
void settle(const Exec& exec) {
    for (const auto& memory : exec.allocated) memory->in_use = true;
    for (const auto& memory : exec.freed) memory->in_use = false;
    for (const auto* all : {&exec.allocated, &exec.freed})
        for (const auto& memory : *all) memory->last_use = exec.last;
}

CUresult append_event(Driver& driver, Stream& stream, const Step& step) {
    Event* event = named(objects().events, step.event);
    if (!event) return no_such_handle();
    return step.node->task.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? record_event(driver, stream, *event)
                                                                   : await_event(driver, stream, *event);
}

CUresult launch(Driver& driver, Exec& exec, CUstream handle, Stream*& stream, std::unique_lock<std::mutex>& guard) {
    EMULATOR_TRY(begin_work(driver, *stream));
    if (exec.context && exec.last.stream != stream->slot) EMULATOR_TRY(append_wait(driver, *stream, exec.last));
    EMULATOR_TRY(allocate(driver, exec));
    exec.context = stream->context;
    exec.last = stream->last();
    // A graph is queued as a whole, so that nothing comes in between; one longer than a ring fills it bit by bit.
    for (std::size_t i = 0; i < exec.steps.size(); ++i) {
        if (i > 0 && i % wire::kStreamDepth == 0) EMULATOR_TRY(wait_for_room(driver, handle, guard, stream));
        const Step& step = exec.steps[i];
        const CUresult result = step.event     ? append_event(driver, *stream, step)
                                : step.host.fn ? append_host(driver, *stream, step.host)
                                               : append(driver, *stream, step.request);
        if (result != CUDA_SUCCESS) return result;
        exec.last = stream->last();
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
        if (node->task.type != twin->task.type) {
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

CUresult make_exec(Driver& driver, CUgraph handle, std::shared_ptr<Exec>& made) {
    made = std::make_shared<Exec>();
    {
        const std::lock_guard guard(driver.lock);
        const Graph* graph = find_graph(handle);
        if (!graph) return CUDA_ERROR_INVALID_VALUE;
        made->graph = clone(*graph, made->nodes);
    }
    return add_steps(driver, *made, *made->graph);
}

}  // namespace
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
    guard.unlock();
    EMULATOR_TRY(make_exec(driver, graph, made));
    guard.lock();
    made->frees_before_launch = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    *out = reinterpret_cast<CUgraphExec>(made.get());
    execs()[made.get()] = made;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    std::shared_ptr<Exec> exec;  // let go after the lock
    EMULATOR_ENTER_CONTEXT();
    exec = find_exec(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    Stream* stream = nullptr;
    EMULATOR_TRY(wait_for_room(driver, stream_handle, guard, stream));
    if (!stream->capture) return launch(driver, *exec, stream_handle, stream, guard);
    EMULATOR_TRY(capture_task(*stream, {.type = CU_GRAPH_NODE_TYPE_GRAPH}));
    std::map<const Node*, Node*> copies;
    up_to_date(*stream).graph->nodes.back()->child = clone(*exec->graph, copies);
    return CUDA_SUCCESS;
}

// A launch has nothing left to prepare here.
CUresult CUDAAPI cuGraphUpload(CUgraphExec handle, CUstream stream) {
    EMULATOR_ENTER_CONTEXT();
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
    if (node.task.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    EMULATOR_TRY(make_kernel(*parameters, node.task));
    std::ranges::find(exec->steps, &node, &Step::node)->request = node.task.work.front();
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
