// Graphs: tasks and the order between them. Guarded by the driver's lock.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cuda/execution/task.hpp"

namespace emulator::cuda {

struct Graph;

struct Node {
    Task task;
    std::vector<Node*> needs = {};            // of the same graph
    std::shared_ptr<const Graph> child = {};  // of child graphs
    std::vector<void*> values = {};           // of kernels: where their parameters are, for who asks
    const Graph* graph = nullptr;
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
inline CUgraph handle_of(Graph* graph) { return reinterpret_cast<CUgraph>(graph); }
inline CUgraphNode handle_of(Node* node) { return reinterpret_cast<CUgraphNode>(node); }

}  // namespace emulator::cuda
