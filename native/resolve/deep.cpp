#include "resolve/deep.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>
#include <memory>

#include "core/guest.hpp"
#include "core/pages.hpp"
#include "core/text.hpp"
#include "resolve/copies.hpp"
#include "resolve/elf.hpp"

namespace runlist::resolve {
namespace {

using Path = Text<4096>;

// A file that somebody else wrote, as it lies on the disk.
class Image {
  public:
    explicit Image(const char* path) {
        const long file = call(SYS_openat, long{AT_FDCWD}, word(path), long{O_RDONLY | O_CLOEXEC | O_NONBLOCK});
        struct stat found{};
        if (file < 0) return;
        if (call(SYS_newfstatat, file, word(""), word(&found), long{AT_EMPTY_PATH}) == 0 && S_ISREG(found.st_mode)) {
            const long mapped = call(SYS_mmap, 0L, found.st_size, long{PROT_READ}, long{MAP_PRIVATE}, file, 0L);
            if (mapped > 0 || mapped <= -4096) {
                bytes_ = reinterpret_cast<const char*>(mapped);
                size_ = static_cast<std::uint64_t>(found.st_size);
            }
        }
        call(SYS_close, file);
    }
    ~Image() {
        if (bytes_ != nullptr) unmap_pages(const_cast<char*>(bytes_), size_);
    }
    Image(const Image&) = delete;
    Image& operator=(const Image&) = delete;

    // Whether it is linked with a library of that name, which it looks for where all do.
    bool needs(const char* soname) const {
        const auto* header = at<ElfW(Ehdr)>(0);
        if (header == nullptr || !begins(bytes_, ELFMAG) || header->e_ident[EI_CLASS] != ELFCLASS64) return false;
        std::uint64_t texts = 0;
        bool own_path = false;
        each_entry(*header, [&](const ElfW(Dyn) & entry) {
            if (entry.d_tag == DT_STRTAB) texts = offset_of(*header, entry.d_un.d_ptr);
            if (entry.d_tag == DT_RPATH || entry.d_tag == DT_RUNPATH) own_path = true;
        });
        bool found = false;
        each_entry(*header, [&](const ElfW(Dyn) & entry) {
            if (entry.d_tag == DT_NEEDED) found = found || has_text(texts + entry.d_un.d_val, soname);
        });
        return found && texts != 0 && !own_path;
    }

  private:
    template <typename Type>
    const Type* at(std::uint64_t offset) const {
        const bool inside = bytes_ != nullptr && offset <= size_ && sizeof(Type) <= size_ - offset;
        return inside && offset % alignof(Type) == 0 ? reinterpret_cast<const Type*>(bytes_ + offset) : nullptr;
    }

    template <typename Visit>
    void each_segment(const ElfW(Ehdr) & header, const Visit& visit) const {
        for (std::uint64_t index = 0; index < header.e_phnum; ++index) {
            if (const auto* one = at<ElfW(Phdr)>(header.e_phoff + index * sizeof(ElfW(Phdr)))) visit(*one);
        }
    }

    template <typename Visit>
    void each_entry(const ElfW(Ehdr) & header, const Visit& visit) const {
        each_segment(header, [&](const ElfW(Phdr) & segment) {
            if (segment.p_type != PT_DYNAMIC) return;
            for (std::uint64_t done = 0; done < segment.p_filesz; done += sizeof(ElfW(Dyn))) {
                const auto* entry = at<ElfW(Dyn)>(segment.p_offset + done);
                if (entry == nullptr || entry->d_tag == DT_NULL) return;
                visit(*entry);
            }
        });
    }

    std::uint64_t offset_of(const ElfW(Ehdr) & header, std::uint64_t address) const {
        std::uint64_t found = 0;
        each_segment(header, [&](const ElfW(Phdr) & segment) {
            if (segment.p_type == PT_LOAD && address - segment.p_vaddr < segment.p_filesz)
                found = address - segment.p_vaddr + segment.p_offset;
        });
        return found;
    }

    bool has_text(std::uint64_t offset, const char* text) const {
        for (;; ++offset, ++text) {
            if (offset >= size_ || bytes_[offset] != *text) return false;
            if (*text == '\0') return true;
        }
    }

    const char* bytes_ = nullptr;
    std::uint64_t size_ = 0;
};

bool exists(const char* path) { return call(SYS_faccessat, long{AT_FDCWD}, word(path), long{R_OK}) == 0; }

// Where the dynamic linker looks for a bare name on behalf of its caller's object, before it looks where it does for
// everybody: what it finds there is put into `path`.
void find_as(const void* caller, const char* name, Path& path) {
    using AddressInfo = int(const void*, Dl_info*, void**, int);
    using HandleInfo = int(void*, int, void*);
    auto* object_of = reinterpret_cast<AddressInfo*>(of_c_library("dladdr1"));
    auto* ask = reinterpret_cast<HandleInfo*>(of_c_library("dlinfo"));
    Dl_info unused{};
    void* object = nullptr;
    Dl_serinfo needed{};
    if (object_of == nullptr || ask == nullptr || object_of(caller, &unused, &object, RTLD_DL_LINKMAP) == 0) return;
    if (object == nullptr || ask(object, RTLD_DI_SERINFOSIZE, &needed) != 0) return;
    auto* all = static_cast<Dl_serinfo*>(map_pages(needed.dls_size));
    if (all == nullptr) return;
    all->dls_size = needed.dls_size;
    all->dls_cnt = needed.dls_cnt;
    constexpr unsigned kOfAll = 0x40;  // LA_SER_DEFAULT
    const bool told = ask(object, RTLD_DI_SERINFO, all) == 0;
    bool found = false;
    for (unsigned index = 0; told && !found && index < all->dls_cnt; ++index) {
        const Dl_serpath& folder = all->dls_serpath[index];
        if ((folder.dls_flags & kOfAll) != 0) break;
        path.clear();
        path.add(folder.dls_name).add('/').add(name);
        found = path.fits && exists(path.text);
    }
    unmap_pages(all, needed.dls_size);
    if (found) return;
    path.clear();
    path.add(name);
}

bool has_slash(const char* text) {
    for (; *text != '\0'; ++text) {
        if (*text == '/') return true;
    }
    return false;
}

void* open_by(Path& path, Open open, const char* file, int mode, const void* caller) {
    path.add(file);
    if (!has_slash(file)) find_as(caller, file, path);
    if (!path.fits) return open(file, mode);
    for (const Library library : {Library::kCuda, Library::kNvml}) {
        const char* soname = soname_of(library);
        if (object_named(soname)) continue;
        if (Image(path.text).needs(soname)) open(soname, RTLD_LAZY);
        copy_of_base(library);
    }
    const Objects before;
    void* handle = open(path.text, mode);
    if (handle != nullptr) bind_new(before);
    return handle;
}

}  // namespace

void* open_deep(Open open, const char* file, int mode, const void* caller) {
    if (void* there = open(file, mode | RTLD_NOLOAD)) return there;
    void* pages = map_pages(sizeof(Path));  // whose thread it is may have a small stack
    if (pages == nullptr) return open(file, mode);
    void* handle = open_by(*std::construct_at(static_cast<Path*>(pages)), open, file, mode, caller);
    unmap_pages(pages, sizeof(Path));
    return handle;
}

}  // namespace runlist::resolve
