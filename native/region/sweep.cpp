#include "region/sweep.hpp"

#include <dirent.h>
#include <fcntl.h>

#include <cstring>

#include "core/guest.hpp"
#include "region/region.hpp"
#include "region/slots.hpp"

namespace runlist::region {
namespace {

constexpr int kMost = 16;  // regions to look into in one go: a program waits for this

char* write_number(char* at, std::uint64_t number) {
    char digits[20];
    int count = 0;
    do {
        digits[count++] = static_cast<char>('0' + number % 10);
        number /= 10;
    } while (number != 0);
    while (count > 0) *at++ = digits[--count];
    return at;
}

const char* read_number(const char* at, std::uint64_t& number) {
    const char* begin = at;
    for (number = 0; *at >= '0' && *at <= '9' && at - begin < 19; ++at) {
        number = number * 10 + static_cast<std::uint64_t>(*at - '0');
    }
    return at != begin ? at : nullptr;
}

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
    Name name{};
    char* at = write_number(name.text, static_cast<std::uint64_t>(self.pid));
    *at++ = '-';
    write_number(at, self.start_time);
    return name;
}

void sweep(const char* directory, const Self& self) {
    const long opened = call(SYS_openat, long{AT_FDCWD}, word(directory), long{O_RDONLY | O_DIRECTORY | O_CLOEXEC}, 0L);
    if (opened < 0) return;
    alignas(dirent64) char entries[4096];
    const long size = call(SYS_getdents64, opened, word(entries), long{sizeof(entries)});
    const std::size_t length = std::strlen(directory);
    int looked = 0;
    for (long at = 0; at < size && looked < kMost;) {
        const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
        at += entry->d_reclen;
        char path[4096 + sizeof(entry->d_name)];
        if (length >= 4096 || !is_orphan(entry->d_name, self)) continue;
        ++looked;
        std::memcpy(path, directory, length);
        path[length] = '/';
        std::strcpy(path + length + 1, entry->d_name);
        if (is_unused(path, self)) call(SYS_unlinkat, opened, word(entry->d_name), 0L);
    }
    call(SYS_close, opened);
}

}  // namespace runlist::region
