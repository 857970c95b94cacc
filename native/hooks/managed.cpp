#include "hooks/managed.hpp"

#include "core/lock.hpp"
#include "core/pages.hpp"

namespace runlist::hooks {
namespace {

constexpr CUdeviceptr kEmpty = 0;
constexpr CUdeviceptr kGone = 1;  // an entry was here; those behind it are still found
constexpr std::size_t kFirstCapacity = 1024;

bool is_live(CUdeviceptr pointer) { return pointer != kEmpty && pointer != kGone; }

struct Entry {
    std::atomic<CUdeviceptr> pointer;
    Managed managed;
};

// Open addressing. One that got too small stays mapped: others may be looking into it.
struct Table {
    std::size_t capacity;  // a power of two
    std::size_t used;      // entries that are not empty

    Entry* entries() { return reinterpret_cast<Entry*>(this + 1); }
    Entry& place(std::size_t number) { return entries()[number & (capacity - 1)]; }
    static std::size_t first(CUdeviceptr pointer) {
        constexpr std::uint64_t kGolden = 0x9E37'79B9'7F4A'7C15;
        return pointer * kGolden >> 20;
    }

    Entry* find(CUdeviceptr pointer) {
        for (std::size_t number = first(pointer);; ++number) {
            const CUdeviceptr there = place(number).pointer.load(std::memory_order_acquire);
            if (there == pointer) return &place(number);
            if (there == kEmpty) return nullptr;
        }
    }

    void insert(const Managed& managed) {
        std::size_t number = first(managed.pointer);
        while (is_live(pointer_at(number))) ++number;
        if (pointer_at(number) == kEmpty) ++used;
        place(number).managed = managed;
        place(number).pointer.store(managed.pointer, std::memory_order_release);
    }

    // The last one of a row leaves nothing behind, and neither do those in front of it that are gone.
    void remove(Entry& entry) {
        auto number = static_cast<std::size_t>(&entry - entries());
        entry.pointer.store(kGone, std::memory_order_release);
        if (pointer_at(number + 1) != kEmpty) return;
        for (; pointer_at(number) == kGone; --number, --used) {
            place(number).pointer.store(kEmpty, std::memory_order_release);
        }
    }

  private:
    CUdeviceptr pointer_at(std::size_t number) { return place(number).pointer.load(std::memory_order_relaxed); }
};

constinit Lock lock;
constinit std::atomic<Table*> table;

Table* make_table(std::size_t capacity) {
    auto* empty = static_cast<Table*>(map_pages(sizeof(Table) + capacity * sizeof(Entry)));
    if (empty != nullptr) empty->capacity = capacity;
    return empty;
}

// A table with room for one more; nullptr if there is no memory for it.
Table* table_with_room() {
    Table* old = table.load(std::memory_order_relaxed);
    if (old != nullptr && old->used * 2 < old->capacity) return old;
    const std::size_t live = managed_count.load(std::memory_order_relaxed);
    std::size_t capacity = kFirstCapacity;
    while (capacity < live * 4 + 4) capacity *= 2;
    Table* made = make_table(capacity);
    if (made == nullptr) return nullptr;
    for (std::size_t i = 0; old != nullptr && i < old->capacity; ++i) {
        if (is_live(old->place(i).pointer.load(std::memory_order_relaxed))) made->insert(old->place(i).managed);
    }
    table.store(made, std::memory_order_release);
    return made;
}

void remove(Entry& entry) {
    table.load(std::memory_order_relaxed)->remove(entry);
    managed_count.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

constinit std::atomic<std::uint64_t> managed_count;

void remember(const Managed& managed) {
    if (lock.acquire(Caller::here()) != 0) return;  // it stays charged: too little is given, never too much
    if (Table* roomy = table_with_room()) {
        roomy->insert(managed);
        managed_count.fetch_add(1, std::memory_order_relaxed);
    }
    lock.release();
}

bool take(CUdeviceptr pointer, Managed& managed) {
    Table* seen = table.load(std::memory_order_acquire);
    if (!is_live(pointer) || seen == nullptr || seen->find(pointer) == nullptr) return false;
    if (lock.acquire(Caller::here()) != 0) return false;
    Entry* entry = table.load(std::memory_order_relaxed)->find(pointer);
    if (entry != nullptr) {
        managed = entry->managed;
        remove(*entry);
    }
    lock.release();
    return entry != nullptr;
}

void refund_context(CUcontext context) {
    if (context == nullptr || lock.acquire(Caller::here()) != 0) return;
    Table* all = table.load(std::memory_order_relaxed);
    for (std::size_t i = 0; all != nullptr && i < all->capacity; ++i) {
        Entry& entry = all->place(i);
        if (!is_live(entry.pointer.load(std::memory_order_relaxed)) || entry.managed.context != context) continue;
        region::quota.refund(entry.managed.device, entry.managed.bytes, false);
        remove(entry);
    }
    lock.release();
}

}  // namespace runlist::hooks
