#include "region/find.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>

#include "core/guest.hpp"
#include "core/say.hpp"
#include "protocol/environment.autogen.hpp"
#include "region/process.hpp"
#include "region/slots.hpp"
#include "region/sweep.hpp"

namespace runlist::region {
namespace {

using environment::Options;

constexpr long kPrivate = 0700;

enum class Missing { kMade, kLeft };

// A directory below `parent` (a descriptor, which is closed) that is ours. Negative when it is not to be had.
long enter(long parent, const char* name, Missing missing) {
    const long made = missing == Missing::kMade ? call(SYS_mkdirat, parent, word(name), kPrivate) : -ENOENT;
    const long opened = call(SYS_openat, parent, word(name), long{O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC}, 0L);
    call(SYS_close, parent);
    if (opened < 0) return opened;
    struct stat found{};
    const bool ours = call(SYS_newfstatat, opened, word(""), word(&found), long{AT_EMPTY_PATH}) == 0 &&
                      found.st_uid == static_cast<uid_t>(call(SYS_geteuid)) &&
                      (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
    if (ours && (made != 0 || call(SYS_fchmod, opened, kPrivate) == 0)) return opened;
    call(SYS_close, opened);
    return -EPERM;
}

bool reach(const char* parent, const char* name, Missing missing) {
    long directory = call(SYS_openat, long{AT_FDCWD}, word(parent), long{O_RDONLY | O_DIRECTORY | O_CLOEXEC}, 0L);
    for (const char* part : {name, names::kRegionsFolder}) {
        if (directory >= 0) directory = enter(directory, part, missing);
    }
    if (directory < 0) return false;
    call(SYS_close, directory);
    return true;
}

// Whether another directory may do where this is a fault.
constexpr bool is_of_place(Fault fault) {
    return fault == Fault::kNowhere || fault == Fault::kMissing || fault == Fault::kDenied ||
           fault == Fault::kReadOnly || fault == Fault::kNoSpace || fault == Fault::kSystem;
}

// Has `find` look for a region that nobody named in each of the directories where there may be one, until it finds one.
// The path is that of the last directory that was tried, also of one that is not to be had.
template <typename Find>
Fault find_in_each(Path& path, Missing missing, const Find& find) {
    const char* runtime = ::secure_getenv(names::kRuntimeDir);
    Text<32> own;
    own.add(names::kTemporaryPrefix).add(call(SYS_geteuid));
    Fault fault = Fault::kNowhere;
    for (const char* place : {runtime, names::kTemporaryFolder, names::kMemoryFolder}) {
        if (place == nullptr || place[0] != '/' || !is_of_place(fault)) continue;
        const char* folder = place == runtime ? names::kOwnFolder : own.text;
        path.clear();
        path.add(place).add('/').add(folder).add('/').add(names::kRegionsFolder);
        fault = reach(place, folder, missing) && path.fits ? find() : Fault::kNowhere;
    }
    return fault;
}

Fault open_or_create(const char* path, const Limits& limits, Region& out) {
    const Fault fault = Region::open(path, out);
    return fault == Fault::kMissing ? Region::create(path, limits, out) : fault;
}

// The region that this process begins, named to its children.
Fault begin(const Limits& limits, Path& path, Region& out) {
    const auto self = Self::look();
    const Fault fault = find_in_each(path, Missing::kMade, [&] {
        sweep(path.text, self);
        path.add('/').add(own_name(self).text);
        return Region::create(path.text, limits, out);
    });
    if (fault == Fault::kNone) ::setenv(names::kRegion, path.text, 1);
    return fault;
}

// The region that all processes share which name the same path, for a path in a directory that others can write to, as
// HAMi's usually is: it lies in our own directory instead.
Fault agree(const char* named, const Limits& limits, Path& path, Region& out) {
    std::uint64_t hash = 0xCBF2'9CE4'8422'2325;  // FNV-1a
    for (const char* at = named; *at != '\0'; ++at) hash = (hash ^ static_cast<unsigned char>(*at)) * 0x100'0000'01B3;
    // First one that is there: who made it may have found no room where there is some now.
    const Fault there = find_in_each(path, Missing::kLeft, [&] {
        path.add("/named-").add(hash);
        return Region::open(path.text, out) == Fault::kNone ? Fault::kNone : Fault::kMissing;
    });
    if (there == Fault::kNone) return there;
    return find_in_each(path, Missing::kMade, [&] {
        path.add("/named-").add(hash);
        return open_or_create(path.text, limits, out);
    });
}

// A region by a name that processes agreed on may be left over from others before them: then the limits of now hold.
Fault find_named(const char* named, const Limits& limits, Path& path, Region& out) {
    Fault fault = open_or_create(named, limits, out);
    if (fault == Fault::kDamaged || fault == Fault::kVersion) {
        say(Level::kWarning, "region ", Quoted{named}, " ", describe(fault), ": remove it; another one holds now");
    }
    if (fault != Fault::kNone) fault = agree(named, limits, path, out);
    if (fault == Fault::kNone && is_vacant(out)) out.limit(limits);
    return fault;
}

}  // namespace

Fault find(const Options& options, const Limits& limits, Path& path, Region& out) {
    if (options.region[0] != '\0') {
        path.add(options.region);
        if (options.makes_region) return find_named(options.region, limits, path, out);
        const Fault fault = Region::open(options.region, out);
        const bool is_out_of_reach = fault == Fault::kForeign || is_of_place(fault);
        if (fault == Fault::kNone || !is_out_of_reach || !options.has_limits()) return fault;
        // Swept away while nobody used it: the name is made again, so that this tree goes on sharing it.
        if (fault == Fault::kMissing && Region::create(options.region, limits, out) == Fault::kNone)
            return Fault::kNone;
        path.clear();  // this process is another user now, or in a sandbox: it holds to the limits by itself
    }
    return begin(limits, path, out);
}

}  // namespace runlist::region
