// Every hook of every row, and the names that programs find when they were linked with the driver's libraries.
#include "hooks/entries.hpp"

#include <utility>

#include "hooks/context.hpp"
#include "hooks/graph_events.hpp"
#include "hooks/launch.hpp"
#include "hooks/managed.hpp"
#include "hooks/memory.hpp"
#include "hooks/nvml_queries.hpp"
#include "hooks/own_limits.hpp"
#include "hooks/proc_address.hpp"
#include "hooks/scheduled.hpp"
#include "resolve/elf.hpp"

namespace runlist::hooks {
namespace {

template <int row>
void* const kHooks[] = {
#define HOOK(behaviour, name) reinterpret_cast<void*>(kScheduled<behaviour<Id::name, row>, Id::name, row>),
#define CALL(name) nullptr,
#include "hooks/cuda.inc"
#include "hooks/nvml.inc"
#undef HOOK
#undef CALL
};

template <std::size_t... rows>
void* find(int row, Id id, std::index_sequence<rows...>) {
    constexpr void* const* kTables[] = {kHooks<rows>...};
    return kTables[row][static_cast<int>(id)];
}

// nullptr for a function that we only call.
void* find(int row, Id id) { return find(row, id, std::make_index_sequence<kRows>{}); }

}  // namespace

void* hook_of_copy(Library library, int row, const char* name) {
    for (int index = 0; index < kCount; ++index) {
        const Id id = static_cast<Id>(index);
        if (library_of(id) == library && names[index] == name) return find(row, id);
    }
    return nullptr;
}

void add_copy(Library library, int row, const resolve::Object& copy) {
    if (library == Library::kCuda) set_calls(row, copy);
    const auto each = [&](const auto& visit) {
        for (int index = 0; index < kCount; ++index) {
            if (library_of(static_cast<Id>(index)) == library) visit(index, real_functions[row][index]);
        }
    };
    each([&](int index, Real& real) { real.store(copy.symbol(names[index].data()), std::memory_order_release); });
    // Only now: another thread may be given a hook at once, and a hook calls several functions.
    each([&](int index, Real& real) {
        void* found = real.load(std::memory_order_relaxed);
        void* ours = find(row, static_cast<Id>(index));
        if (found != nullptr && ours != nullptr) set_hook_of(found, ours);
    });
}

}  // namespace runlist::hooks

// An export jumps to its hook with the arguments as they are, so its type need not be written down here again.
#if defined(__x86_64__)
#define JUMP(hook) "endbr64\n jmp *" hook "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(hook) "hint #34\n adrp x16, " hook "\n ldr x16, [x16, :lo12:" hook "]\n br x16\n"
#endif

#define HOOK(behaviour, name)                                                                                    \
    extern "C" {                                                                                                 \
    [[gnu::visibility("hidden")]] extern decltype(&::name) const runlist_linked_##name;                          \
    [[gnu::used]] decltype(&::name) const runlist_linked_##name =                                                \
        runlist::hooks::kScheduled<runlist::hooks::behaviour<runlist::hooks::Id::name, runlist::hooks::kLinked>, \
                                   runlist::hooks::Id::name, runlist::hooks::kLinked>;                           \
    }                                                                                                            \
    __asm__(".pushsection .text\n .globl " #name "\n .type " #name ", %function\n .balign 16\n" #name            \
            ":\n .cfi_startproc\n" JUMP("runlist_linked_" #name) ".cfi_endproc\n .size " #name ", . - " #name    \
                                                                 "\n .popsection\n");
#define CALL(name)
#include "hooks/cuda.inc"
#include "hooks/nvml.inc"
