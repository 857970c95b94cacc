// Graphs: nodes of work and the order between them.
//
// A node holds its work as the operations that the device is given, made when the node is: what a program changes
// afterwards in the memory that its parameters came from changes nothing. Guarded by the driver's lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cuda/exports.hpp"
#include "shared/protocol.hpp"

namespace emulator::cuda {

class Driver;
struct Function;
struct Graph;
struct GraphMemory;

struct Node {
    Graph* graph;
    CUgraphNodeType type;
    std::vector<Node*> needs = {};             // of the same graph
    std::vector<wire::Request> work = {};      // of kernels, copies and fills: in order
    const Function* function = nullptr;        // of kernels
    unsigned shared_bytes = 0;                 // of kernels
    std::vector<void*> values = {};            // of kernels: where their parameters are, for who asks
    CUDA_HOST_NODE_PARAMS host = {};           // of host functions
    std::shared_ptr<const Graph> child = {};   // of child graphs
    std::shared_ptr<GraphMemory> memory = {};  // of what allocates and frees memory
};

struct Graph {
    Graph() = default;
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    ~Graph();

    Node& add(Node node);

    std::vector<std::unique_ptr<Node>> nodes;  // in the order in which they were added
};

// The graph or node that a handle names; nullptr when it names none.
Graph* find_graph(CUgraph handle);
Node* find_node(CUgraphNode handle);

// Gives a graph to the program.
CUgraph publish(std::unique_ptr<Graph> graph);
// A copy, and where each node of the original is in it.
std::unique_ptr<Graph> clone(const Graph& graph, std::map<const Node*, Node*>& copies);
// The nodes, each behind what it needs; fewer than there are when they need each other.
std::vector<Node*> ordered(const Graph& graph);
// Do some of `nodes`, or what they need, include `wanted`?
bool reaches(const std::vector<Node*>& nodes, const Node* wanted);

inline CUgraph handle_of(Graph* graph) { return reinterpret_cast<CUgraph>(graph); }
inline CUgraphNode handle_of(Node* node) { return reinterpret_cast<CUgraphNode>(node); }

// The work of a kernel with these parameters (graph_nodes.cpp).
CUresult set_kernel(Node& node, const CUDA_KERNEL_NODE_PARAMS& parameters);

}  // namespace emulator::cuda
