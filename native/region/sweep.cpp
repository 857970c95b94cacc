#include "region/sweep.hpp"

#include <dirent.h>
#include <fcntl.h>

#include "core/guest.hpp"
#include "region/region.hpp"
#include "region/slots.hpp"

namespace runlist::region {
namespace {

constexpr int kMostSwept = 16;  // regions to look into in one go: a program waits for this

// Whether a file has the name of a region that was made by hand, by a process that ended.
bool is_orphan(const char* name, const Self& self) {
    std::uint64_t pid = 0;
    std::uint64_t start = 0;
    const char* rest = read_number(name, pid);
    if (rest == nullptr || *rest != '-' || pid > INT32_MAX) return false;
    rest = read_number(rest + 1, start);
    return rest != nullptr && *rest == '\0' && ended(self, static_cast<std::int32_t>(pid), start);
}

bool is_unused(const char* path, const Self& self) {
    Region region;
    if (Region::open(path, region) != Fault::kNone) return false;
    const bool unused = region.header().pid_namespace == self.pid_namespace && is_vacant(region);
    region.close();
    return unused;
}

}  // namespace

Name own_name(const Self& self) {
    Name name;
    name.add(self.pid).add('-').add(self.start_time);
    return name;
}

void sweep(const char* directory, const Self& self) {
    const long opened = call(SYS_openat, long{AT_FDCWD}, word(directory), long{O_RDONLY | O_DIRECTORY | O_CLOEXEC}, 0L);
    if (opened < 0) return;
    alignas(dirent64) static char entries[4096];  // once in a process, whose stack may be small
    const long size = call(SYS_getdents64, opened, word(entries), long{sizeof(entries)});
    int looked = 0;
    for (long at = 0; at < size && looked < kMostSwept;) {
        const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
        at += entry->d_reclen;
        if (!is_orphan(entry->d_name, self)) continue;
        ++looked;
        static constinit Text<4096> path;
        path.clear();
        path.add(directory).add('/').add(entry->d_name);
        if (path.fits && is_unused(path.text, self)) call(SYS_unlinkat, opened, word(entry->d_name), 0L);
    }
    call(SYS_close, opened);
}

}  // namespace runlist::region
