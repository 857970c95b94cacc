// Loaded objects and their symbols, read where the dynamic linker reads them. Nothing here asks the C library's dlsym,
// so dlerror's state stays, and our own exports are never what is found.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>

namespace runlist::resolve {

// Compare texts with nothing of the C library: sanitizers put their own strcmp before its, and call dlsym before theirs
// can be called.
inline bool same(const char* one, const char* other) {
    for (; *one == *other; ++one, ++other) {
        if (*one == '\0') return true;
    }
    return false;
}

inline bool begins(const char* text, const char* with) {
    for (; *with != '\0'; ++text, ++with) {
        if (*text != *with) return false;
    }
    return true;
}

// A loaded object: where it lies and what its dynamic section says. A view; good as long as the object stays loaded.
class Object {
  public:
    Object() = default;
    explicit Object(const dl_phdr_info& info);  // of this namespace
    explicit Object(const link_map& map);       // of any namespace

    explicit operator bool() const { return symbols_ != nullptr; }
    ElfW(Addr) base() const { return base_; }
    const char* path() const { return path_; }  // as the dynamic linker has it; "" for the program's own
    bool is(const char* soname) const;
    bool contains(const void* address) const;
    void* symbol(const char* name) const;    // what it defines by that name, in the default version; nullptr
    void* variable(const char* name) const;  // the same, unless it is a function

    // Sets the entries of its global offset table that stand for a name: those for which `wanted(name)` is not null.
    // Pages that were made read-only after relocation are made so again.
    using Wanted = void* (*)(const char* name, void* context);
    void rebind(Wanted wanted, void* context) const;

  private:
    void read_headers(const ElfW(Phdr) * headers, std::size_t count);
    void read_dynamic(const ElfW(Dyn) * dynamic);
    bool defines(std::uint32_t index, const char* name, bool& is_default) const;
    const ElfW(Sym) * definition(const char* name) const;
    template <typename Visit>
    void each_candidate(const char* name, const Visit& visit) const;
    void rebind_table(const void* table, std::size_t bytes, Wanted wanted, void* context) const;
    void set_entry(void** entry, void* value) const;

    const char* path_ = "";
    ElfW(Addr) base_ = 0;
    const ElfW(Phdr) * headers_ = nullptr;
    std::size_t header_count_ = 0;
    const ElfW(Sym) * symbols_ = nullptr;
    const char* strings_ = nullptr;
    const char* soname_ = "";
    const std::uint32_t* gnu_hash_ = nullptr;
    const std::uint32_t* hash_ = nullptr;
    const std::uint16_t* versions_ = nullptr;
    const void* relocations_ = nullptr;
    std::size_t relocation_bytes_ = 0;
    const void* jump_slots_ = nullptr;
    std::size_t jump_slot_bytes_ = 0;
};

// The objects of the base namespace in the order in which symbols are looked for, until `visit` returns false.
using Visit = bool (*)(const Object& object, void* context);
void each_object(Visit visit, void* context);

template <typename Visitor>
void each_object(Visitor&& visitor) {
    each_object([](const Object& object, void* context) { return (*static_cast<Visitor*>(context))(object); },
                &visitor);
}

Object own_object();                                // this library; asks nobody
Object object_at(const void* address);              // the one of the base namespace that contains it
Object object_named(const char* soname);            // the first one of that name
void* next(const char* name);                       // the first definition behind ours in the search order; nullptr
void* next(const char* name, const void* address);  // the first one behind the object of `address`

void* of_c_library(const char* name);  // dlsym and its like: of libc.so.6, before glibc 2.34 of libdl.so.2

}  // namespace runlist::resolve
