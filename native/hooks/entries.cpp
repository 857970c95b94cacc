// Every hook of every row, and the names that programs find when they were linked with the driver's libraries.
#include "hooks/entries.hpp"

#include <utility>

#include "hooks/context.hpp"
#include "hooks/launch.hpp"
#include "hooks/managed.hpp"
#include "hooks/memory.hpp"
#include "hooks/nvml.hpp"
#include "hooks/proc_address.hpp"
#include "hooks/single.hpp"

namespace runlist::hooks {
namespace {

template <int row>
void* const kHooks[] = {
#define HOOK(behaviour, name) reinterpret_cast<void*>(&behaviour<Id::name, row>::call),
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

}  // namespace

void* hook(int row, Id id) { return find(row, id, std::make_index_sequence<kRows>{}); }

}  // namespace runlist::hooks

// An export jumps to its hook with the arguments as they are, so its type need not be written down here again.
#if defined(__x86_64__)
#define JUMP(hook) "endbr64\n jmp *" hook "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(hook) "hint #34\n adrp x16, " hook "\n ldr x16, [x16, :lo12:" hook "]\n br x16\n"
#endif

#define HOOK(behaviour, name)                                                                                 \
    extern "C" {                                                                                              \
    [[gnu::visibility("hidden")]] extern decltype(&::name) const runlist_linked_##name;                       \
    [[gnu::used]] decltype(&::name) const runlist_linked_##name =                                             \
        &runlist::hooks::behaviour<runlist::hooks::Id::name, runlist::hooks::kLinked>::call;                  \
    }                                                                                                         \
    __asm__(".pushsection .text\n .globl " #name "\n .type " #name ", %function\n .balign 16\n" #name         \
            ":\n .cfi_startproc\n" JUMP("runlist_linked_" #name) ".cfi_endproc\n .size " #name ", . - " #name \
                                                                 "\n .popsection\n");
#define CALL(name)
#include "hooks/cuda.inc"
#include "hooks/nvml.inc"
