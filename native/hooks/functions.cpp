#include "hooks/functions.hpp"

#include <algorithm>
#include <iterator>

#include "resolve/copies.hpp"
#include "resolve/elf.hpp"

namespace runlist::hooks {
namespace {

// Real function -> hook. Open addressing; entries are added while a row is, and never taken away: a copy stays loaded.
struct Known {
    std::atomic<const void*> function;
    std::atomic<void*> hook;
};

constexpr std::size_t kKnown = 2048;
static_assert(kKnown > 2 * kRows * kCount / 2 && (kKnown & (kKnown - 1)) == 0);
constinit Known known_functions[kKnown];

std::size_t first_place(const void* function) {
    constexpr std::uint64_t kGolden = 0x9E37'79B9'7F4A'7C15;
    return (reinterpret_cast<std::uint64_t>(function) * kGolden) >> 53;  // 11 bits
}

}  // namespace

constinit const std::string_view names[kCount] = {
#define HOOK(behaviour, name) #name,
#define CALL(name) #name,
#include "hooks/cuda.inc"
#include "hooks/nvml.inc"
#undef HOOK
#undef CALL
};

constinit Real real_functions[kRows][kCount];

void* find_linked(Id id) {
    const int index = static_cast<int>(id);
    resolve::copy_of_base(library_of(id));
    void* found = resolve::next(names[index].data());
    if (found != nullptr) real_functions[kLinked][index].store(found, std::memory_order_release);
    return found;
}

bool is_listed(std::string_view name) { return std::ranges::find(names, name) != std::end(names); }

void* hook_of(const void* function) {
    for (std::size_t place = first_place(function);; ++place) {
        const Known& known = known_functions[place % kKnown];
        const void* there = known.function.load(std::memory_order_acquire);
        if (there == nullptr) return nullptr;
        if (there == function) return known.hook.load(std::memory_order_relaxed);
    }
}

void set_hook_of(const void* function, void* hook) {
    for (std::size_t place = first_place(function);; ++place) {
        Known& known = known_functions[place % kKnown];
        const void* there = known.function.load(std::memory_order_relaxed);
        if (there == function) return;  // the same code under two names
        if (there != nullptr) continue;
        known.hook.store(hook, std::memory_order_relaxed);
        known.function.store(function, std::memory_order_release);
        return;
    }
}

}  // namespace runlist::hooks
