#include "rm/objects.hpp"

#include "core/pages.hpp"

namespace runlist::rm {

std::uint64_t Objects::pack(const Memory& memory) {
    return memory.bytes | static_cast<std::uint64_t>(memory.parent) << 5 | std::uint64_t{memory.overhead} << 4 |
           static_cast<std::uint64_t>(memory.device);
}

Memory Objects::unpack(std::uint64_t word) {
    return {.bytes = word & ~(kGranularity - 1),
            .device = static_cast<int>(word & 15),
            .parent = static_cast<int>(word >> 5 & (kParents - 1)),
            .overhead = (word >> 4 & 1) != 0};
}

Objects::Word* Objects::Client::word(std::uint32_t object, bool make) {
    std::atomic<Branch*>& branch_place = branches[object >> 20];
    Branch* branch = make ? made(branch_place) : branch_place.load(std::memory_order_acquire);
    if (branch == nullptr) return nullptr;
    std::atomic<Leaf*>& leaf_place = branch->leaves[object >> 10 & 1023];
    Leaf* leaf = make ? made(leaf_place) : leaf_place.load(std::memory_order_acquire);
    return leaf != nullptr ? &leaf->words[object & 1023] : nullptr;
}

Objects::Client* Objects::find(std::uint32_t client) const {
    Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr || client == 0) return nullptr;
    for (int index = 0; index < kClients; ++index) {
        if (table->handles[index].load(std::memory_order_acquire) == client) return &table->clients[index];
    }
    return nullptr;
}

Objects::Client* Objects::find_or_add(std::uint32_t client) {
    if (Client* found = find(client)) return found;
    Table* table = made(table_);
    if (table == nullptr || client == 0) return nullptr;
    for (int index = 0; index < kClients; ++index) {
        std::uint32_t handle = 0;
        if (table->handles[index].compare_exchange_strong(handle, client, std::memory_order_acq_rel)) handle = client;
        if (handle == client) return &table->clients[index];
    }
    return nullptr;
}

void Objects::forget(std::uint32_t client) {
    Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) return;
    for (auto& handle : table->handles) {
        std::uint32_t found = client;
        handle.compare_exchange_strong(found, 0, std::memory_order_acq_rel);
    }
}

std::optional<Memory> Objects::put(std::uint32_t client, std::uint32_t object, const Memory& memory) {
    Client* found = find_or_add(client);
    Word* word = found != nullptr ? found->word(object, true) : nullptr;
    if (word == nullptr) return std::nullopt;
    return unpack(word->exchange(pack(memory), std::memory_order_acq_rel));
}

Memory Objects::take(std::uint32_t client, std::uint32_t object) {
    Client* found = find(client);
    Word* word = found != nullptr ? found->word(object, false) : nullptr;
    if (word == nullptr || word->load(std::memory_order_acquire) == 0) return unpack(0);
    return unpack(word->exchange(0, std::memory_order_acq_rel));
}

}  // namespace runlist::rm
