#include "cuda/memory/allocation.hpp"

#include <vector>

#include "cuda/memory/heap.hpp"

namespace emulator::cuda {
namespace {

constexpr std::uint64_t kLargestCut = 1 << 20;  // beyond, an allocation has pages of its own

// Small allocations of each context.
using Heaps = std::map<const Context*, Heap>;

}  // namespace

CUresult allocate(Driver& driver, Context& context, std::uint64_t bytes, std::uint64_t& address) {
    if (bytes <= kLargestCut) {
        Heap& heap = kept<Heaps>().try_emplace(&context, context.gpu).first->second;
        EMULATOR_TRY(heap.take(driver, bytes, address));
        allocations().emplace(address, Allocation{bytes, &context, Allocation::Kind::kCut});
        return CUDA_SUCCESS;
    }
    Block block;
    EMULATOR_TRY(make_block(driver, context.gpu, bytes, block));
    address = block.address;
    allocations().emplace(address, Allocation{bytes, &context, Allocation::Kind::kOwn, block});
    return CUDA_SUCCESS;
}

const Block& block_of(const Allocation& allocation, std::uint64_t start) {
    if (allocation.kind != Allocation::Kind::kCut) return allocation.block;
    return kept<Heaps>().at(allocation.context).block_of(start);
}

void free_allocation(Driver& driver, std::uint64_t address) {
    const auto it = allocations().find(address);
    if (it == allocations().end()) return;
    const Allocation allocation = it->second;
    allocations().erase(it);
    switch (allocation.kind) {
        case Allocation::Kind::kCut: {
            Heap& heap = kept<Heaps>().at(allocation.context);
            heap.give(address);
            heap.trim(driver, 0);
            break;
        }
        case Allocation::Kind::kPool:
            free_from(driver, *allocation.pool, address);
            break;
        case Allocation::Kind::kOwn:
        case Allocation::Kind::kImported:
            drop_block(driver, allocation.block);
    }
}

void free_all_memory(Driver& driver, const Context& context) {
    std::vector<std::uint64_t> gone;
    for (const auto& [address, allocation] : allocations())
        if (allocation.context == &context) gone.push_back(address);
    for (const std::uint64_t address : gone) free_allocation(driver, address);
    kept<Heaps>().erase(&context);
}

}  // namespace emulator::cuda
