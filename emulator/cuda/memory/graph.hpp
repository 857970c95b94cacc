// Memory that graphs allocate: addresses from when the node is made, memory behind them from the first launch until it
// is trimmed. The driver's lock is held throughout.
#pragma once

#include <memory>

#include "cuda/execution/task.hpp"
#include "cuda/memory/space.hpp"

namespace emulator::cuda {

// Addresses for a node. CUDA_ERROR_OUT_OF_MEMORY when there are none.
CUresult reserve_graph_memory(Driver& driver, std::uint32_t gpu, std::uint64_t bytes,
                              std::shared_ptr<GraphMemory>& made);
// Puts memory behind the addresses, if there is none yet.
CUresult back_graph_memory(Driver& driver, GraphMemory& memory);
// What an address begins; nullptr when it begins none.
std::shared_ptr<GraphMemory> find_graph_memory(std::uint64_t address);
// Are all these addresses of one such memory?
bool is_graph_memory(std::uint64_t address, std::uint64_t bytes);
// Frees outside a graph what a launch has allocated. False when it is none of this.
bool free_graph_memory(std::uint64_t address);

}  // namespace emulator::cuda
