#include "resolve/copies.hpp"

#include <dlfcn.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/lock.hpp"
#include "core/pages.hpp"
#include "core/say.hpp"
#include "resolve/elf.hpp"

namespace runlist::resolve {
namespace {

constexpr const char* kSonames[kLibraries] = {"libcuda.so.1", "libnvidia-ml.so.1"};
constexpr Library kEach[kLibraries] = {Library::kCuda, Library::kNvml};

// A copy's place: free until it is known.
struct Copy {
    std::atomic<bool> known{false};
    bool of_base = false;
    Object object{};
};

constinit Copy copies[kLibraries][kRows];
constinit Lock lock;

Copy& copy(Library library, int row) { return copies[static_cast<int>(library)][row]; }

template <typename Predicate>
int find_copy(Library library, const Predicate& is_it) {
    for (int row = kFirstCopy; row < kRows; ++row) {
        const Copy& one = copy(library, row);
        if (one.known.load(std::memory_order_acquire) && is_it(one)) return row;
    }
    return kLinked;
}

// Keeps an object loaded: programs have our hooks, and those its functions.
void pin(const Object& object, Lmid_t space) {
    using Open = void*(Lmid_t, const char*, int);
    auto* open = reinterpret_cast<Open*>(of_c_library("dlmopen"));
    if (open != nullptr && object.path()[0] != '\0')
        open(space, object.path(), RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

// Where the objects of the base namespace go to, which one that was opened with RTLD_DEEPBIND does not see.
void* binding_of_base(const char* name, void*) {
    if (std::strcmp(name, "ioctl") == 0) return reinterpret_cast<void*>(&::ioctl);
    if (std::strcmp(name, "runlist_emulated_ioctl") == 0) return reinterpret_cast<void*>(substitutes.emulated_ioctl);
    return nullptr;
}

void say_too_many() {
    static constinit std::atomic<bool> said{false};
    if (!said.exchange(true))
        say(Level::kError, "too many copies of the driver's libraries: the last go without limits");
}

// Its row, one that is given to it now, or kLinked if there are too many copies.
int note(Library library, const Object& object, Lmid_t space) {
    const auto same = [&](const Copy& one) { return one.object.base() == object.base(); };
    if (const int row = find_copy(library, same); row != kLinked) return row;
    pin(object, space);
    if (lock.acquire(Caller::here()) != 0) return kLinked;
    int row = find_copy(library, same);
    for (int place = kFirstCopy; row == kLinked && place < kRows; ++place) {
        Copy& one = copy(library, place);
        if (one.known.load(std::memory_order_relaxed)) continue;
        row = place;
        one.object = object;
        one.of_base = space == LM_ID_BASE;
        substitutes.add(library, row, object);
        if (one.of_base) object.rebind(&binding_of_base, nullptr);
        one.known.store(true, std::memory_order_release);
    }
    lock.release();
    if (row == kLinked) {
        say_too_many();
    } else {
        substitutes.added();
    }
    return row;
}

// The objects of a namespace that is not the base one, from any of them. Meanwhile none is opened or closed, so `visit`
// may not call the dynamic linker.
template <typename Visitor>
void each_in(const link_map* any, const Visitor& visit) {
    each_object([&](const Object&) {  // for the lock that it holds
        while (any->l_prev != nullptr) any = any->l_prev;
        for (; any != nullptr; any = any->l_next) visit(Object{*any});
        return false;
    });
}

// What the dynamic linker says of a handle: RTLD_DI_LINKMAP, RTLD_DI_LMID.
template <typename Value>
bool ask(void* handle, int what, Value& value) {
    using Info = int(void*, int, void*);
    auto* info = reinterpret_cast<Info*>(of_c_library("dlinfo"));
    return info != nullptr && handle != nullptr && info(handle, what, &value) == 0;
}

// Other namespaces have a C library, and so an errno, of their own.
constexpr int kNamespaces = 4;
using ErrorPlace = int*();
constinit std::atomic<ErrorPlace*> error_places[kNamespaces];
constinit std::atomic<bool> entered_any;

template <int index>
int ioctl_of(int fd, unsigned long request, void* argument) {
    const int saved = errno;
    const int result = ::ioctl(fd, request, argument);
    if (result == -1) *error_places[index].load(std::memory_order_relaxed)() = errno;
    errno = saved;
    return result;
}

constexpr int (*kIoctls[kNamespaces])(int, unsigned long, void*) = {ioctl_of<0>, ioctl_of<1>, ioctl_of<2>, ioctl_of<3>};

void* ioctl_for(void* errno_location) {
    auto* place = reinterpret_cast<ErrorPlace*>(errno_location);
    if (place == nullptr) return nullptr;
    for (int index = 0; index < kNamespaces; ++index) {
        ErrorPlace* there = nullptr;
        if (error_places[index].compare_exchange_strong(there, place) || there == place) {
            return reinterpret_cast<void*>(kIoctls[index]);
        }
    }
    say_too_many();
    return nullptr;
}

struct Namespace {
    void* ioctl;
    int rows[kLibraries];
};

// What an object of another namespace is to have in its global offset table for a name; nullptr: what it has.
void* binding(const char* name, void* context) {
    const auto& here = *static_cast<const Namespace*>(context);
    // The door finds a copy's own function by its row.
    const bool has_row = here.rows[static_cast<int>(Library::kCuda)] != kLinked;
    const struct {
        const char* name;
        void* function;
    } ours[] = {
        {"ioctl", here.ioctl},
        {"runlist_emulated_ioctl", has_row ? reinterpret_cast<void*>(substitutes.emulated_ioctl) : nullptr},
        {"dlsym", reinterpret_cast<void*>(&dlsym)},
        {"dlvsym", reinterpret_cast<void*>(&dlvsym)},
        {"dlmopen", reinterpret_cast<void*>(&dlmopen)},
    };
    for (const auto& one : ours) {
        if (std::strcmp(one.name, name) == 0) return one.function;
    }
    if (std::strncmp(name, "cu", 2) != 0 && std::strncmp(name, "nvml", 4) != 0) return nullptr;
    for (const Library library : kEach) {
        const int row = here.rows[static_cast<int>(library)];
        if (row == kLinked) continue;
        if (void* hook = substitutes.of_copy(library, row, name)) return hook;
    }
    return nullptr;
}

bool is_drivers(const Object& object) {
    return std::ranges::any_of(kEach, [&](Library library) { return object.is(soname_of(library)); });
}

// What a new object is to have for a name: our export of it, unless what came with it has a function of its own by that
// name, or the driver has none.
void* binding_of_new(const char* name, void* context) {
    for (const char* one : {"ioctl", "dlsym", "dlvsym", "dlopen", "dlmopen"}) {
        if (same(one, name)) return own_object().symbol(name);
    }
    if ((!begins(name, "cu") && !begins(name, "nvml")) || !substitutes.listed(name) || !is_of_base(name))
        return nullptr;
    const auto& before = *static_cast<const Objects*>(context);
    bool own = false;
    each_object([&](const Object& object) {
        own = !before.has(object) && !is_drivers(object) && object.symbol(name) != nullptr;
        return !own;
    });
    return own ? nullptr : own_object().symbol(name);
}

}  // namespace

const char* soname_of(Library library) { return kSonames[static_cast<int>(library)]; }

Objects::Objects() {
    each_object([&](const Object&) { return ++room_ > 0; });
    room_ += 64;  // some may come meanwhile
    bases_ = static_cast<std::uintptr_t*>(map_pages(room_ * sizeof(*bases_)));
    if (bases_ == nullptr) return;
    each_object([&](const Object& object) {
        if (count_ < room_) bases_[count_++] = object.base();
        return true;
    });
}

Objects::~Objects() {
    if (bases_ != nullptr) unmap_pages(bases_, room_ * sizeof(*bases_));
}

bool Objects::has(const Object& object) const {
    return std::find(bases_, bases_ + count_, object.base()) != bases_ + count_;
}

void bind_new(const Objects& before) {
    for (const Library library : kEach) copy_of_base(library);
    if (lock.acquire(Caller::here()) != 0) return;  // as in enter_namespace
    each_object([&](const Object& object) {
        const bool theirs = object.is("libc.so.6") || object.is("libdl.so.2") || is_drivers(object);
        if (!before.has(object) && !theirs) object.rebind(&binding_of_new, const_cast<Objects*>(&before));
        return true;
    });
    lock.release();
}

int copy_of_base(Library library) {
    if (const int row = find_copy(library, [](const Copy& one) { return one.of_base; }); row != kLinked) return row;
    substitutes.wanted();  // for what it finds out
    const Object found = object_named(kSonames[static_cast<int>(library)]);
    return found ? note(library, found, LM_ID_BASE) : kLinked;
}

bool is_of_base(const char* name) {
    const auto has = [name](const Copy& one) { return one.of_base && one.object.symbol(name) != nullptr; };
    return std::ranges::any_of(kEach, [&](Library library) { return find_copy(library, has) != kLinked; });
}

bool is_in_copy(const void* address) {
    const auto has = [address](const Copy& one) { return one.object.contains(address); };
    return std::ranges::any_of(kEach, [&](Library library) { return find_copy(library, has) != kLinked; });
}

void* hook_or(void* found, void* handle) {
    if (void* hook = substitutes.of(found)) return hook;
    if (is_in_copy(found)) return found;
    const Object object = object_at(found);
    for (const Library library : kEach) {
        if (object && object.is(kSonames[static_cast<int>(library)])) note(library, object, LM_ID_BASE);
    }
    if (!object) enter_namespace(handle);
    void* hook = substitutes.of(found);
    return hook != nullptr ? hook : found;
}

void enter_namespace(void* handle) {
    const link_map* map = nullptr;
    Lmid_t space = LM_ID_BASE;
    if (!ask(handle, RTLD_DI_LMID, space) || space == LM_ID_BASE || !ask(handle, RTLD_DI_LINKMAP, map)) return;
    expect_namespaces();
    Object drivers[kLibraries];
    Object c_library;
    each_in(map, [&](const Object& object) {
        for (const Library library : kEach) {
            const int index = static_cast<int>(library);
            if (object.is(kSonames[index])) drivers[index] = object;
        }
        if (object.is("libc.so.6")) c_library = object;
    });
    Namespace here{};
    for (const Library library : kEach) {
        const int index = static_cast<int>(library);
        if (drivers[index]) here.rows[index] = note(library, drivers[index], space);
        if (drivers[index] && here.ioctl == nullptr) here.ioctl = ioctl_for(c_library.symbol("__errno_location"));
    }
    if (lock.acquire(Caller::here()) != 0) return;  // two that write to one page would protect it from each other
    each_in(map, [&](const Object& object) {
        if (!object.is("libc.so.6") && !object.is("libdl.so.2")) object.rebind(&binding, &here);
    });
    lock.release();
}

void expect_namespaces() { entered_any.store(true, std::memory_order_relaxed); }

bool other_namespaces() { return entered_any.load(std::memory_order_relaxed); }

void* in_object_of(const void* address, const char* name) {
    if (const Object object = object_at(address)) return object.symbol(name);
    for (const Library library : kEach) {
        const auto has = [&](const Copy& one) { return one.object.contains(address); };
        const int row = find_copy(library, has);
        if (row != kLinked) return copy(library, row).object.symbol(name);
    }
    return nullptr;
}

}  // namespace runlist::resolve
