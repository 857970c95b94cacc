// Graphs with nodes that record events, or wait for them: what launches of graphs mean to queued operations by that
// (operations/engine.hpp).
#pragma once

#include "hooks/launch.hpp"
#include "operations/engine.hpp"

namespace runlist::hooks {

inline void note_graph_events(unsigned what) { operations::graph_events.fetch_or(what, std::memory_order_relaxed); }

consteval unsigned graph_events_of(std::string_view name) {
    if (name.starts_with("cuGraphAddEventRecord") || name.starts_with("cuEventRecord"))
        return operations::kGraphRecords;
    return name.starts_with("cuGraphAddEventWait") || name.starts_with("cuStreamWait") ? operations::kGraphWaits : 0U;
}

// What adds a node to a graph.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct AddNode;

template <Id id, int row, typename... Arguments>
struct AddNode<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        note_graph_events(graph_events_of(Function<id>::kName));
        (look(arguments), ...);
        return call_real<id, row>(arguments...);
    }

  private:
    template <typename Other>
    static void look(const Other&) {}
    static void look(CUgraphNodeParams* node) {
        if (node == nullptr) return;
        if (node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) note_graph_events(operations::kGraphRecords);
        if (node->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) note_graph_events(operations::kGraphWaits);
    }
};

// What becomes a node where a flag says so, and the stream captures.
template <template <Id, int, typename...> typename Otherwise>
struct PerhapsNode {
    template <Id id, int row, typename Type = typename Function<id>::Type>
    struct Of;

    template <Id id, int row, typename... Arguments>
    struct Of<id, row, CUresult(Arguments...)> {
        static CUresult CUDAAPI call(Arguments... arguments) {
            static_assert(CU_EVENT_RECORD_EXTERNAL == 1 && CU_EVENT_WAIT_EXTERNAL == 1);
            if ((flags_of(arguments...) & CU_EVENT_RECORD_EXTERNAL) != 0)
                note_graph_events(graph_events_of(Function<id>::kName));
            return Otherwise<id, row>::call(arguments...);
        }

      private:
        template <typename First, typename Second>
        static unsigned flags_of(First, Second, unsigned flags) {
            return flags;
        }
    };
};

template <Id id, int row>
struct RecordWithFlags : PerhapsNode<Pass>::Of<id, row> {};

// A stream that waits for what is captured captures, too.
template <Id id, int row, typename Type = typename Function<id>::Type>
struct WaitWithFlags;

template <Id id, int row, typename... Arguments>
struct WaitWithFlags<id, row, CUresult(Arguments...)> {
    static CUresult CUDAAPI call(Arguments... arguments) {
        auto* wait = &PerhapsNode<Divide>::Of<id, row>::call;
        if (!any_capture() || !operations::on()) [[likely]]
            return wait(arguments...);
        const operations::Joins joins(Named(arguments...).stream);
        return wait(arguments...);
    }
};

}  // namespace runlist::hooks
