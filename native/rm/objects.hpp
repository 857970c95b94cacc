// Which device memory this process' RM objects are: by client and object handle, in constant time, without locks.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <optional>

#include "region/layout.hpp"

namespace runlist::rm {

inline constexpr int kParents = 128;  // devices and subdevices of all clients, and the last for those not known
inline constexpr int kUnknownParent = kParents - 1;

using Parents = std::bitset<kParents>;

// Memory that was charged.
struct Memory {
    std::uint64_t bytes;  // a multiple of 4096
    int device;           // index in the region
    int parent;           // index in the table of devices
    bool overhead;
};

class Objects {
  public:
    static constexpr std::uint64_t kGranularity = 4096;

    // Returns what the object was before: 0 bytes, unless that was freed without our seeing it, or not yet taken out.
    // Nothing when there is no room.
    std::optional<Memory> put(std::uint32_t client, std::uint32_t object, const Memory& memory);

    // What the object is, and from now on it is nothing. 0 bytes when it is no memory.
    Memory take(std::uint32_t client, std::uint32_t object);

    // Takes all memory of a client that is below some parents.
    template <typename Visit>
    void take_below(std::uint32_t client, const Parents& parents, const Visit& visit) {
        if (Client* found = find(client)) {
            found->each([&](Word& word) {
                const std::uint64_t seen = word.load(std::memory_order_acquire);
                if (seen == 0 || !parents[static_cast<std::size_t>(unpack(seen).parent)]) return;
                if (const std::uint64_t taken = word.exchange(0, std::memory_order_acq_rel)) visit(unpack(taken));
            });
        }
    }

    // Takes all memory of a client, which is no more.
    template <typename Visit>
    void take_all(std::uint32_t client, const Visit& visit) {
        take_below(client, Parents{}.set(), visit);
        forget(client);
    }

  private:
    using Word = std::atomic<std::uint64_t>;

    // Handles' upper 12, middle 10 and lower 10 bits choose the way.
    struct Leaf {
        Word words[1024];
    };

    struct Branch {
        std::atomic<Leaf*> leaves[1024];
    };

    struct Client {
        std::atomic<Branch*> branches[4096];

        Word* word(std::uint32_t object, bool make);

        template <typename Visit>
        void each(const Visit& visit) {
            for (auto& branch_place : branches) {
                Branch* branch = branch_place.load(std::memory_order_acquire);
                if (branch == nullptr) continue;
                for (auto& leaf_place : branch->leaves) {
                    Leaf* leaf = leaf_place.load(std::memory_order_acquire);
                    if (leaf == nullptr) continue;
                    for (Word& word : leaf->words) visit(word);
                }
            }
        }
    };

    static constexpr int kClients = 64;

    struct Table {
        std::atomic<std::uint32_t> handles[kClients];
        Client clients[kClients];  // pages that nobody touches take no memory
    };

    // bytes | parent << 5 | overhead << 4 | device
    static std::uint64_t pack(const Memory& memory);
    static Memory unpack(std::uint64_t word);
    static_assert(region::kDevices == 16 && kParents == 128, "they fit below the granularity");

    Client* find(std::uint32_t client) const;
    Client* find_or_add(std::uint32_t client);
    void forget(std::uint32_t client);

    std::atomic<Table*> table_{nullptr};
};

}  // namespace runlist::rm
