#include "resolve/elf.hpp"

#include <elf.h>
#include <linux/futex.h>
#include <sys/mman.h>

#include <atomic>
#include <initializer_list>

#include "core/guest.hpp"

extern "C" [[gnu::visibility("hidden")]] const ElfW(Ehdr) __ehdr_start;  // where the linker puts our own
#pragma weak _r_debug  // of glibc's dynamic linker; a program that is linked against musl has another one

namespace runlist::resolve {
namespace {

using Address = ElfW(Addr);

#if defined(__x86_64__)
constexpr std::uint32_t kGlobalEntry = R_X86_64_GLOB_DAT;
constexpr std::uint32_t kJumpSlot = R_X86_64_JUMP_SLOT;
#elif defined(__aarch64__)
constexpr std::uint32_t kGlobalEntry = R_AARCH64_GLOB_DAT;
constexpr std::uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT;
#else
#error "not built for this processor: name its relocations here"
#endif

constexpr std::uint16_t kHiddenVersion = 0x8000;

// Where DT_GNU_HASH is in memory: header, Bloom filter, buckets, chains.
struct GnuHash {
    std::uint32_t bucket_count;
    std::uint32_t first_symbol;
    std::uint32_t bloom_words;
    std::uint32_t bloom_shift;

    const Address* bloom() const { return reinterpret_cast<const Address*>(this + 1); }
    const std::uint32_t* buckets() const { return reinterpret_cast<const std::uint32_t*>(bloom() + bloom_words); }
    const std::uint32_t* chains() const { return buckets() + bucket_count; }

    bool may_have(std::uint32_t hash) const {
        constexpr std::uint32_t kBits = sizeof(Address) * 8;
        const Address word = bloom()[(hash / kBits) % bloom_words];
        return (word >> (hash % kBits) & word >> ((hash >> bloom_shift) % kBits) & 1) != 0;
    }
};

std::uint32_t gnu_hash(const char* name) {
    std::uint32_t hash = 5381;
    for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
    return hash;
}

std::uint32_t sysv_hash(const char* name) {
    std::uint32_t hash = 0;
    for (; *name != '\0'; ++name) {
        hash = (hash << 4) + static_cast<unsigned char>(*name);
        const std::uint32_t top = hash & 0xF000'0000;
        hash = (hash ^ top >> 24) & ~top;
    }
    return hash;
}

std::uint32_t relocation_type(ElfW(Xword) info) { return static_cast<std::uint32_t>(ELF64_R_TYPE(info)); }

template <typename Type>
const Type* at(Address address) {
    return reinterpret_cast<const Type*>(address);
}

// Has the kernel compare a word there, as if to wait while it is 0; for no time.
bool is_readable(const void* address) {
    const timespec at_once{};
    return address != nullptr &&
           call(SYS_futex, address, long{FUTEX_WAIT_PRIVATE}, 0L, &at_once, nullptr, 0L) != -EFAULT;
}

}  // namespace

Object::Object(const dl_phdr_info& info) : path_(info.dlpi_name), base_(info.dlpi_addr) {
    read_headers(info.dlpi_phdr, info.dlpi_phnum);
}

Object::Object(const link_map& map) : path_(map.l_name), base_(map.l_addr) {
    const auto* file = at<ElfW(Ehdr)>(base_);  // unless its first segment has another address than 0
    if (!is_readable(file) || !begins(reinterpret_cast<const char*>(file->e_ident), ELFMAG)) return;
    read_headers(at<ElfW(Phdr)>(base_ + file->e_phoff), file->e_phnum);
}

void Object::read_headers(const ElfW(Phdr) * headers, std::size_t count) {
    headers_ = headers;
    header_count_ = count;
    for (std::size_t i = 0; i < count; ++i) {
        if (headers[i].p_type == PT_DYNAMIC) return read_dynamic(at<ElfW(Dyn)>(base_ + headers[i].p_vaddr));
    }
}

void Object::read_dynamic(const ElfW(Dyn) * dynamic) {
    // glibc has made the addresses absolute, unless it could not write there (the vDSO).
    const auto absolute = [this](const ElfW(Dyn) & entry) {
        return entry.d_un.d_ptr < base_ ? base_ + entry.d_un.d_ptr : entry.d_un.d_ptr;
    };
    std::size_t name = 0;
    for (; dynamic->d_tag != DT_NULL; ++dynamic) {
        switch (dynamic->d_tag) {
            case DT_SYMTAB:
                symbols_ = at<ElfW(Sym)>(absolute(*dynamic));
                break;
            case DT_STRTAB:
                strings_ = at<char>(absolute(*dynamic));
                break;
            case DT_SONAME:
                name = dynamic->d_un.d_val;
                break;
            case DT_GNU_HASH:
                gnu_hash_ = at<std::uint32_t>(absolute(*dynamic));
                break;
            case DT_HASH:
                hash_ = at<std::uint32_t>(absolute(*dynamic));
                break;
            case DT_VERSYM:
                versions_ = at<std::uint16_t>(absolute(*dynamic));
                break;
            case DT_RELA:
                relocations_ = at<void>(absolute(*dynamic));
                break;
            case DT_RELASZ:
                relocation_bytes_ = dynamic->d_un.d_val;
                break;
            case DT_JMPREL:
                jump_slots_ = at<void>(absolute(*dynamic));
                break;
            case DT_PLTRELSZ:
                jump_slot_bytes_ = dynamic->d_un.d_val;
                break;
            default:
                break;
        }
    }
    if (strings_ == nullptr) symbols_ = nullptr;
    if (symbols_ != nullptr && name != 0) soname_ = strings_ + name;
}

bool Object::is(const char* soname) const { return same(soname_, soname); }

bool Object::contains(const void* address) const {
    const auto offset = reinterpret_cast<Address>(address) - base_;
    for (std::size_t i = 0; i < header_count_; ++i) {
        const auto& header = headers_[i];
        if (header.p_type == PT_LOAD && offset - header.p_vaddr < header.p_memsz) return true;
    }
    return false;
}

bool Object::defines(std::uint32_t index, const char* name, bool& is_default) const {
    const ElfW(Sym) & symbol = symbols_[index];
    const unsigned type = symbol.st_info & 0xF;
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_value == 0) return false;
    if (type != STT_FUNC && type != STT_OBJECT && type != STT_NOTYPE) return false;
    if (!same(strings_ + symbol.st_name, name)) return false;
    is_default = versions_ == nullptr || (versions_[index] & kHiddenVersion) == 0;
    return true;
}

// The symbols that may have that name; `visit` returns true to stop.
template <typename Visit>
void Object::each_candidate(const char* name, const Visit& visit) const {
    if (symbols_ == nullptr) return;
    if (gnu_hash_ != nullptr) {
        const auto& table = *reinterpret_cast<const GnuHash*>(gnu_hash_);
        const std::uint32_t hash = gnu_hash(name);
        if (table.bucket_count == 0 || !table.may_have(hash)) return;
        std::uint32_t index = table.buckets()[hash % table.bucket_count];
        if (index < table.first_symbol) return;
        for (;; ++index) {
            const std::uint32_t chained = table.chains()[index - table.first_symbol];
            if ((chained | 1) == (hash | 1) && visit(index)) return;
            if ((chained & 1) != 0) return;
        }
    }
    if (hash_ != nullptr && hash_[0] != 0) {
        const std::uint32_t* buckets = hash_ + 2;
        const std::uint32_t* chains = buckets + hash_[0];
        for (std::uint32_t index = buckets[sysv_hash(name) % hash_[0]]; index != STN_UNDEF; index = chains[index]) {
            if (visit(index)) return;
        }
    }
}

const ElfW(Sym) * Object::definition(const char* name) const {
    const ElfW(Sym)* found = nullptr;
    each_candidate(name, [&](std::uint32_t index) {
        bool is_default = false;
        if (!defines(index, name, is_default)) return false;
        if (found == nullptr || is_default) found = &symbols_[index];
        return is_default;
    });
    return found;
}

void* Object::symbol(const char* name) const {
    const ElfW(Sym)* found = definition(name);
    return found == nullptr ? nullptr : reinterpret_cast<void*>(base_ + found->st_value);
}

void* Object::variable(const char* name) const {
    const ElfW(Sym)* found = definition(name);
    return found == nullptr || (found->st_info & 0xF) != STT_OBJECT ? nullptr
                                                                    : reinterpret_cast<void*>(base_ + found->st_value);
}

void Object::rebind(Wanted wanted, void* context) const {
    rebind_table(jump_slots_, jump_slot_bytes_, wanted, context);
    rebind_table(relocations_, relocation_bytes_, wanted, context);
}

void Object::rebind_table(const void* table, std::size_t bytes, Wanted wanted, void* context) const {
    if (symbols_ == nullptr || table == nullptr) return;
    const auto* entries = static_cast<const ElfW(Rela)*>(table);
    for (std::size_t i = 0; i < bytes / sizeof(*entries); ++i) {
        const std::uint32_t type = relocation_type(entries[i].r_info);
        if (type != kGlobalEntry && type != kJumpSlot) continue;
        const char* name = strings_ + symbols_[ELF64_R_SYM(entries[i].r_info)].st_name;
        if (void* value = wanted(name, context)) {
            set_entry(reinterpret_cast<void**>(base_ + entries[i].r_offset), value);
        }
    }
}

void Object::set_entry(void** entry, void* value) const {
    std::atomic_ref<void*> place{*entry};
    if (place.load(std::memory_order_relaxed) == value) return;
    const auto page_size = static_cast<Address>(::sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<Address>(entry);
    const Address page = address & ~(page_size - 1);
    bool read_only = false;
    for (std::size_t i = 0; i < header_count_; ++i) {
        if (headers_[i].p_type != PT_GNU_RELRO) continue;
        const Address first = base_ + headers_[i].p_vaddr;
        read_only = page >= (first & ~(page_size - 1)) && page < ((first + headers_[i].p_memsz) & ~(page_size - 1));
    }
    const auto protect = [&](long protection) {
        return call(SYS_mprotect, static_cast<long>(page), static_cast<long>(page_size), protection) == 0;
    };
    if (read_only && !protect(PROT_READ | PROT_WRITE)) return;
    place.store(value, std::memory_order_release);
    if (read_only) protect(PROT_READ);
}

namespace {

using Iterate = int (*)(int (*)(dl_phdr_info*, std::size_t, void*), void*);

// The C library's own dl_iterate_phdr, not one that is in front of it: a sanitizer's does not work before its runtime
// does, and we are asked before that. The C library is at the beginning of the list, which only grows.
Iterate c_library_iterate() {
    static std::atomic<Iterate> known{nullptr};
    if (const Iterate found = known.load(std::memory_order_relaxed)) return found;
    const link_map* first = &_r_debug != nullptr ? _r_debug.r_map : nullptr;
    for (const link_map* map = first; map != nullptr; map = map->l_next) {
        const Object object{*map};
        if (!object.is("libc.so.6")) continue;
        if (void* found = object.symbol("dl_iterate_phdr")) {
            known.store(reinterpret_cast<Iterate>(found), std::memory_order_relaxed);
            return reinterpret_cast<Iterate>(found);
        }
    }
    return ::dl_iterate_phdr;
}

}  // namespace

void each_object(Visit visit, void* context) {
    struct Call {
        Visit visit;
        void* context;
    } outer{visit, context};
    c_library_iterate()(
        [](dl_phdr_info* info, std::size_t, void* inner) {
            const auto* asked = static_cast<Call*>(inner);
            return asked->visit(Object{*info}, asked->context) ? 0 : 1;
        },
        &outer);
}

Object own_object() {
    const auto base = reinterpret_cast<Address>(&__ehdr_start);
    dl_phdr_info info{};
    info.dlpi_addr = base;
    info.dlpi_name = "";
    info.dlpi_phdr = at<ElfW(Phdr)>(base + __ehdr_start.e_phoff);
    info.dlpi_phnum = __ehdr_start.e_phnum;
    return Object{info};
}

Object object_at(const void* address) {
    Object found;
    each_object([&](const Object& object) {
        if (object.contains(address)) found = object;
        return !found.contains(address);
    });
    return found;
}

Object object_named(const char* soname) {
    Object found;
    each_object([&](const Object& object) {
        if (object.is(soname)) found = object;
        return !found;
    });
    return found;
}

void* next(const char* name, const void* address) {
    void* found = nullptr;
    bool behind = false;
    each_object([&](const Object& object) {
        if (behind) found = object.symbol(name);
        behind = behind || object.contains(address);
        return found == nullptr;
    });
    return found;
}

void* next(const char* name) { return next(name, reinterpret_cast<const void*>(&kJumpSlot)); }

void* of_c_library(const char* name) {
    for (const char* library : {"libc.so.6", "libdl.so.2"}) {
        if (void* found = object_named(library).symbol(name)) return found;
    }
    return nullptr;
}

}  // namespace runlist::resolve
