// dlsym, dlvsym, dlopen and dlmopen as programs see them.
//
// The real ones look at their return address: dlsym when it is asked for what comes next, or by default, and dlopen
// and dlmopen for the folders in which its caller's libraries are. So they must be jumped to with the caller's. The
// exports are a few instructions that ask route() and then either return its answer or jump.
#include <dlfcn.h>

#include <atomic>

#include "core/guest.hpp"
#include "resolve/copies.hpp"
#include "resolve/deep.hpp"
#include "resolve/elf.hpp"

namespace runlist::resolve {
namespace {

// Both are in registers when a function returns this. `target` is where to go on; nullptr: return `answer`.
struct Route {
    void* answer;
    void* target;
};

constinit std::atomic<void*> real_dlsym;
constinit std::atomic<void*> real_dlvsym;
constinit std::atomic<void*> real_dlopen;
constinit std::atomic<void*> real_dlmopen;

// A function of a library that is preloaded behind us, or of the C library; looked for once.
void* real(std::atomic<void*>& known, const char* name) {
    void* found = known.load(std::memory_order_relaxed);
    if (found == nullptr) {
        found = next(name);
        if (found == nullptr) found = of_c_library(name);
        known.store(found, std::memory_order_relaxed);
    }
    return found;
}

constinit std::atomic<long> loaded_by{0};  // the process id

// In a child of fork the dynamic linker's lock may be taken for ever, by a thread that the child does not have.
bool may_be_locked() { return call(SYS_getpid) != loaded_by.load(std::memory_order_relaxed); }

[[gnu::constructor]] void find_real_ones() {
    loaded_by.store(call(SYS_getpid), std::memory_order_relaxed);
    real(real_dlsym, "dlsym");
    real(real_dlvsym, "dlvsym");
    real(real_dlopen, "dlopen");
    real(real_dlmopen, "dlmopen");
}

bool may_be_hooked(const char* name) {
    if (!begins(name, "cu") && !begins(name, "nvml")) return false;
    return substitutes.listed(name) && substitutes.wanted();
}

// Our export of that name; nullptr.
void* own(const char* name) { return own_object().symbol(name); }

// Whether a name is there only because we export it: the driver's library is not loaded.
bool is_only_ours(const char* name) {
    if (own(name) == nullptr || is_of_base(name)) return false;
    bool others = false;
    each_object([&](const Object& object) {
        others = object.symbol(name) != nullptr && !object.contains(&real_dlsym);
        return !others;
    });
    return !others;
}

// A library may keep what it looks up in variables of the same names, as cuew does. It means its own, where the dynamic
// linker has put our functions, and is about to write there.
void leave_variables(const char* name, const void* caller) {
    Object object = object_at(caller);
    if (object.variable(name) == nullptr) return;
    object.rebind(
        [](const char* wanted, void* context) -> void* {
            return own(wanted) == nullptr ? nullptr : static_cast<const Object*>(context)->variable(wanted);
        },
        &object);
}

// The functions of this file. A look-up by version passes by our exports, which have none.
bool is_look_up(const char* name) {
    return same(name, "dlsym") || same(name, "dlvsym") || same(name, "dlopen") || same(name, "dlmopen");
}

void* ours_or(void* found) {
    if (found == nullptr) return nullptr;
    if (found == of_c_library("dlsym")) return reinterpret_cast<void*>(&::dlsym);
    if (found == of_c_library("dlvsym")) return reinterpret_cast<void*>(&::dlvsym);
    if (found == of_c_library("dlopen")) return reinterpret_cast<void*>(&::dlopen);
    return found == of_c_library("dlmopen") ? reinterpret_cast<void*>(&::dlmopen) : found;
}

// What comes next after the caller. One that was opened later finds, in a scope of its own, what in ours lies before
// it.
Route route_next(void* real, const char* name, const void* caller) {
    if (is_look_up(name)) {
        void* found = next(name, caller);
        return {found != nullptr ? found : own(name), nullptr};
    }
    if (may_be_hooked(name)) {
        void* found = next(name, caller);
        if (found == nullptr && object_at(caller)) found = next(name);
        if (void* ours = found != nullptr ? hook_or(found, nullptr) : nullptr; ours != found) return {ours, nullptr};
    }
    return {nullptr, real};
}

template <typename... Version>
Route route(void* real, void* handle, const char* name, const void* caller, Version... version) {
    if (real == nullptr) return {};
    using Look = void*(void*, const char*, Version...);
    auto* look = reinterpret_cast<Look*>(real);
    if (may_be_hooked(name) && !may_be_locked()) leave_variables(name, caller);
    const auto absent = [&] { return look(RTLD_NEXT, name, version...); };  // behind us: not found, as without us
    const bool anywhere = handle == RTLD_DEFAULT || handle == RTLD_NEXT;
    if (anywhere && may_be_hooked(name) && is_only_ours(name)) return {absent(), nullptr};
    if (handle == RTLD_NEXT) return route_next(real, name, caller);
    if (handle == RTLD_DEFAULT && is_look_up(name)) return {ours_or(look(handle, name, version...)), nullptr};
    if (handle == RTLD_DEFAULT) return {nullptr, real};
    void* found = look(handle, name, version...);
    if (found != nullptr && other_namespaces()) enter_namespace(handle);
    if (found != nullptr && may_be_hooked(name)) {
        found = hook_or(found, handle);
        if (found == own(name) && is_only_ours(name)) found = absent();
    }
    if (is_look_up(name)) found = ours_or(found);
    return {found, nullptr};
}

// One that passes by us, unless we see to it. Where the name has a variable that stands for the caller's folder, the
// real one must see the caller.
bool is_deep(const char* file, int mode, const void* caller) {
    if ((mode & RTLD_DEEPBIND) == 0 || file == nullptr || *file == '\0') return false;
    for (const char* at = file; *at != '\0'; ++at) {
        if (*at == '$') return false;
    }
    return substitutes.wanted() && object_at(caller);
}

}  // namespace
}  // namespace runlist::resolve

using namespace runlist::resolve;

extern "C" {

[[gnu::used, gnu::visibility("hidden")]] Route runlist_route_dlsym(void* handle, const char* name, const void* caller) {
    return route(real(real_dlsym, "dlsym"), handle, name, caller);
}

[[gnu::used, gnu::visibility("hidden")]] Route runlist_route_dlvsym(void* handle, const char* name, const char* version,
                                                                    const void* caller) {
    return route(real(real_dlvsym, "dlvsym"), handle, name, caller, version);
}

[[gnu::used, gnu::visibility("hidden")]] Route runlist_route_dlopen(const char* file, int mode, const void* caller) {
    void* open = real(real_dlopen, "dlopen");
    if (!is_deep(file, mode, caller)) return {nullptr, open};
    return {open_deep(reinterpret_cast<Open>(open), file, mode, caller), nullptr};
}

// Nothing of another namespace is called before something is looked up in it.
[[gnu::used, gnu::visibility("hidden")]] Route runlist_route_dlmopen(Lmid_t space, const char* file, int mode,
                                                                     const void* caller) {
    if (space == LM_ID_BASE && is_deep(file, mode, caller)) return runlist_route_dlopen(file, mode, caller);
    if (substitutes.wanted() && space != LM_ID_BASE) expect_namespaces();
    return {nullptr, real(real_dlmopen, "dlmopen")};
}
}

// Up to three arguments are kept, and the return address is put behind them as route's last.
#if defined(__x86_64__)
#define ROUTED(name, last)                                                                               \
    __asm__(".pushsection .text\n .globl " #name "\n .type " #name ", %function\n .balign 16\n" #name    \
            ":\n .cfi_startproc\n endbr64\n"                                                             \
            " push %rdi\n .cfi_adjust_cfa_offset 8\n push %rsi\n .cfi_adjust_cfa_offset 8\n"             \
            " push %rdx\n .cfi_adjust_cfa_offset 8\n"                                                    \
            " mov 24(%rsp), %" last "\n call runlist_route_" #name                                       \
            "\n mov %rdx, %r11\n"                                                                        \
            " pop %rdx\n .cfi_adjust_cfa_offset -8\n pop %rsi\n .cfi_adjust_cfa_offset -8\n"             \
            " pop %rdi\n .cfi_adjust_cfa_offset -8\n"                                                    \
            " test %r11, %r11\n jne 1f\n ret\n1: jmp *%r11\n .cfi_endproc\n .size " #name ", . - " #name \
            "\n .popsection\n");
ROUTED(dlsym, "rdx")
ROUTED(dlvsym, "rcx")
ROUTED(dlopen, "rdx")
ROUTED(dlmopen, "rcx")
#elif defined(__aarch64__)
#define ROUTED(name, last)                                                                                  \
    __asm__(".pushsection .text\n .globl " #name "\n .type " #name ", %function\n .balign 16\n" #name       \
            ":\n .cfi_startproc\n hint #34\n stp x29, x30, [sp, #-48]!\n .cfi_adjust_cfa_offset 48\n"       \
            " .cfi_rel_offset x29, 0\n .cfi_rel_offset x30, 8\n mov x29, sp\n"                              \
            " stp x0, x1, [sp, #16]\n str x2, [sp, #32]\n mov " last ", x30\n bl runlist_route_" #name      \
            "\n mov x16, x1\n cbz x16, 1f\n ldp x0, x1, [sp, #16]\n ldr x2, [sp, #32]\n"                    \
            "1: ldp x29, x30, [sp], #48\n .cfi_adjust_cfa_offset -48\n .cfi_restore x29\n"                  \
            " .cfi_restore x30\n cbz x16, 2f\n br x16\n2: ret\n .cfi_endproc\n .size " #name ", . - " #name \
            "\n .popsection\n");
ROUTED(dlsym, "x2")
ROUTED(dlvsym, "x3")
ROUTED(dlopen, "x2")
ROUTED(dlmopen, "x3")
#endif
