#include "cuda/graph/graph.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "cuda/driver/driver.hpp"

namespace emulator::cuda {
namespace {

struct Known {
    std::map<Graph*, std::unique_ptr<Graph>> graphs;  // the program's
    std::set<Node*> nodes;                            // of all graphs
};

Known& known() { return kept<Known>(); }

// The edges `from[i]` to `to[i]`. All or none are added.
CUresult add_dependencies(const Graph& graph, std::span<const CUgraphNode> from, std::span<const CUgraphNode> to) {
    for (std::size_t i = 0; i < from.size(); ++i) {
        Node* before = find_node(from[i]);
        const Node* after = find_node(to[i]);
        if (!before || !after || before == after || before->graph != &graph || after->graph != &graph)
            return CUDA_ERROR_INVALID_VALUE;
        if (std::ranges::find(after->needs, before) != after->needs.end()) return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t i = 0; i < from.size(); ++i) find_node(to[i])->needs.push_back(find_node(from[i]));
    return CUDA_SUCCESS;
}

// Gives handles as CUDA does: as many as there is room for, the rest empty; without room to give, how many there are.
CUresult give(const std::vector<Node*>& found, CUgraphNode* out, std::size_t* count) {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t room = std::exchange(*count, found.size());
    if (!out) return CUDA_SUCCESS;
    for (std::size_t i = 0; i < room; ++i) out[i] = i < found.size() ? handle_of(found[i]) : nullptr;
    *count = std::min(room, found.size());
    return CUDA_SUCCESS;
}

CUresult give_nodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count, bool roots_only) {
    EMULATOR_ENTER();
    const Graph* graph = find_graph(handle);
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    std::vector<Node*> found;
    for (const auto& node : graph->nodes)
        if (!roots_only || node->needs.empty()) found.push_back(node.get());
    return give(found, nodes, count);
}

}  // namespace

Node& Graph::add(Node node) {
    node.graph = this;
    nodes.push_back(std::make_unique<Node>(std::move(node)));
    known().nodes.insert(nodes.back().get());
    return *nodes.back();
}

Graph::~Graph() {
    for (const auto& node : nodes) known().nodes.erase(node.get());
}

Graph* find_graph(CUgraph handle) {
    const auto found = known().graphs.find(reinterpret_cast<Graph*>(handle));
    return found == known().graphs.end() ? nullptr : found->first;
}

Node* find_node(CUgraphNode handle) { return named(known().nodes, handle); }

CUgraph publish(std::unique_ptr<Graph> graph) {
    Graph* made = graph.get();
    known().graphs.emplace(made, std::move(graph));
    return handle_of(made);
}

std::unique_ptr<Graph> clone(const Graph& graph, std::map<const Node*, Node*>& copies) {
    auto made = std::make_unique<Graph>();
    for (const auto& node : graph.nodes) copies[node.get()] = &made->add(*node);
    for (const auto& node : made->nodes)
        for (Node*& need : node->needs) need = copies.at(need);
    return made;
}

std::vector<Node*> ordered(const Graph& graph) {
    std::map<const Node*, std::size_t> missing;
    std::map<const Node*, std::vector<Node*>> behind;
    std::vector<Node*> order;
    for (const auto& node : graph.nodes) {
        missing[node.get()] = node->needs.size();
        for (const Node* need : node->needs) behind[need].push_back(node.get());
        if (node->needs.empty()) order.push_back(node.get());
    }
    for (std::size_t done = 0; done < order.size(); ++done)
        for (Node* node : behind[order[done]])
            if (--missing[node] == 0) order.push_back(node);
    return order;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuGraphCreate(CUgraph* graph, unsigned flags) {
    EMULATOR_ENTER();
    if (!graph || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *graph = publish(std::make_unique<Graph>());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
    EMULATOR_ENTER();
    return known().graphs.erase(reinterpret_cast<Graph*>(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphClone(CUgraph* copy, CUgraph handle) {
    EMULATOR_ENTER();
    const Graph* graph = find_graph(handle);
    if (!copy || !graph) return CUDA_ERROR_INVALID_VALUE;
    std::map<const Node*, Node*> copies;
    *copy = publish(clone(*graph, copies));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
    return give_nodes(graph, nodes, count, false);
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
    return give_nodes(graph, nodes, count, true);
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
    EMULATOR_ENTER();
    const Node* node = find_node(handle);
    if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
    *type = node->task.type;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphAddDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                        std::size_t count) {
    EMULATOR_ENTER();
    const Graph* graph = find_graph(handle);
    if (!graph || (count > 0 && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
    return add_dependencies(*graph, {from, count}, {to, count});
}

// Edges that are not plain ones belong to kernels that start each other early, which those here do not.
CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                           const CUgraphEdgeData* edges, std::size_t count) {
    const auto plain = [](const CUgraphEdgeData& edge) { return !edge.from_port && !edge.to_port && !edge.type; };
    if (edges && !std::ranges::all_of(std::span(edges, count), plain)) return CUDA_ERROR_NOT_SUPPORTED;
    return cuGraphAddDependencies(graph, from, to, count);
}
