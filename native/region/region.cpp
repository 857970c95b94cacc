#include "region/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/guest.hpp"
#include "core/text.hpp"
#include "region/process.hpp"

namespace runlist::region {
namespace {

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;
constexpr long kPageBytes = 4096;  // of a mapping that only keeps its file; the kernel rounds it up

constinit char own_path[4096]{};

Fault fault_of(long result) {
    switch (-result) {
        case ENOENT:
        case ENOTDIR:
            return Fault::kMissing;
        case ELOOP:
        case EISDIR:
        case ENXIO:
            return Fault::kNotAFile;
        case EACCES:
        case EPERM:
            return Fault::kForeign;
        case ENOSPC:
        case EDQUOT:
        case EFBIG:
            return Fault::kNoSpace;
        case EROFS:
            return Fault::kReadOnly;
        default:
            return Fault::kSystem;
    }
}

// The same of one that is being made, in a directory that was found to be ours.
Fault fault_of_making(long result) {
    const Fault fault = fault_of(result);
    return fault == Fault::kForeign || fault == Fault::kReadOnly ? Fault::kDenied : fault;
}

bool look_at(int fd, struct stat& found) {
    return call(SYS_newfstatat, long{fd}, word(""), word(&found), long{AT_EMPTY_PATH}) == 0;
}

void close(int fd) { call(SYS_close, long{fd}); }

// Unless somebody else was first.
void write_first(Limit& limit, std::uint64_t value) {
    std::uint64_t none = 0;
    std::uint64_t unchecked = 0;
    if (limit.check.load() != 0 || !limit.value.compare_exchange_strong(none, value)) return;
    limit.check.compare_exchange_strong(unchecked, ~value);
}

void clear(Limit& limit) {
    limit.check.store(0);  // it first: till then the number itself holds
    limit.value.store(0);
}

// Writes everything of a header that says how the rest is laid out.
void lay_out(Header& header) {
    header.magic = kMagic;
    header.version = kVersion;
    header.header_bytes = sizeof(Header);
    header.device_bytes = sizeof(Device);
    header.slot_bytes = sizeof(Slot);
    header.device_count = kDevices;
    header.slot_count = kSlots;
    header.file_bytes = kFileBytes;
}

Fault check(int fd, const struct stat& found) {
    Header header{};
    const long size = call(SYS_pread64, long{fd}, word(&header), long{sizeof(header)}, 0L);
    if (size < 0) return Fault::kSystem;
    if (size != sizeof(header) || header.magic != kMagic) return Fault::kDamaged;
    if (header.version != kVersion) return Fault::kVersion;
    Header right{};
    lay_out(right);
    const bool same = std::memcmp(&header.magic, &right.magic, offsetof(Header, creator_start)) == 0;
    return same && static_cast<std::uint64_t>(found.st_size) == kFileBytes &&
                   header.slots_used.load(std::memory_order_relaxed) <= kSlots
               ? Fault::kNone
               : Fault::kDamaged;
}

// Room on the disk, so that a full one is an error here and no SIGBUS later. What is there may become zeros.
Fault reserve(long fd, std::uint64_t from, std::uint64_t until) {
    long result = call(SYS_fallocate, fd, 0L, static_cast<long>(from), static_cast<long>(until - from));
    if (result < 0 && fault_of(result) != Fault::kNoSpace) {  // the file system has none of it, or a filter denies it
        static constexpr char kZeros[4096]{};
        for (std::uint64_t done = from; done < until; done += static_cast<std::uint64_t>(result)) {
            const std::uint64_t size = std::min<std::uint64_t>(sizeof(kZeros), until - done);
            result = call(SYS_pwrite64, fd, word(kZeros), static_cast<long>(size), static_cast<long>(done));
            if (result <= 0) break;
        }
    }
    return result >= 0 ? Fault::kNone : fault_of_making(result);
}

// All that is used from the start; the rest has its length alone.
Fault reserve(long fd) {
    if (!may_be_as_long(kFileBytes)) return Fault::kNoSpace;
    const long result = call(SYS_ftruncate, fd, long{kFileBytes});
    return result == 0 ? reserve(fd, 0, offsetof(File, operations)) : fault_of_making(result);
}

// A path's directory and what is behind its last slash.
struct Place {
    static constinit inline char directory[4096]{};  // once in a process, whose stack may be small
    const char* name;
    bool fits;

    explicit Place(const char* path) {
        const char* slash = std::strrchr(path, '/');
        name = slash != nullptr ? slash + 1 : path;
        const std::size_t length = static_cast<std::size_t>(name - path);
        fits = length + 2 <= sizeof(directory) && *name != '\0';
        if (!fits) return;
        std::memcpy(directory, path, length);
        std::memcpy(directory + length, ".", 2);
    }

    // The directory, or the negative of an errno value. Others could put files in its place were it not our own.
    long open() const {
        const long found = call(SYS_openat, long{AT_FDCWD}, word(directory), long{O_PATH | O_DIRECTORY | O_CLOEXEC});
        if (found < 0) return found;
        struct stat about{};
        if (look_at(static_cast<int>(found), about) && about.st_uid == call(SYS_geteuid) &&
            (about.st_mode & kOthersWrite) == 0) {
            return found;
        }
        close(static_cast<int>(found));
        return -EPERM;
    }
};

// A name that nobody has: ".region-" and 16 hexadecimal digits.
struct TemporaryName {
    char text[32] = ".region-";

    TemporaryName() {
        auto number = static_cast<std::uint64_t>(monotonic_ns()) ^ static_cast<std::uint64_t>(own_pid()) << 40;
        for (char* digit = text + std::strlen(text); digit < text + 24; ++digit, number >>= 4) {
            *digit = "0123456789abcdef"[number & 15];
        }
    }
};

}  // namespace

const char* describe(Fault fault) {
    switch (fault) {
        case Fault::kNone:
            return "is sound";
        case Fault::kMissing:
            return "does not exist";
        case Fault::kNotAFile:
            return "is not a regular file";
        case Fault::kForeign:
            return "or its directory belongs to another user, or others may write to it";
        case Fault::kReadOnly:
            return "cannot be written: what it lies on is read-only here, as in a sandbox";
        case Fault::kDenied:
            return "may not be made: its directory, the file system or a security profile denies it";
        case Fault::kNowhere:
            return "has no directory: it cannot be made, or it belongs to another user, or others may write to it";
        case Fault::kVersion:
            return "is of another version of Runlist";
        case Fault::kDamaged:
            return "is damaged";
        case Fault::kNoSpace:
            return "has no room: the disk is full, or a quota or ulimit -f is in the way";
        case Fault::kSystem:
            break;
    }
    return "cannot be opened or mapped";
}

Fault Region::open(const char* path, Region& out) {
    const long opened = out_of_the_way(
        call(SYS_openat, long{AT_FDCWD}, word(path), long{O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY}));
    if (opened < 0) return fault_of(opened);
    const Fault fault = adopt(static_cast<int>(opened), out);
    if (fault != Fault::kNone) region::close(static_cast<int>(opened));
    return fault;
}

// Checks and maps an open file.
Fault Region::adopt(int fd, Region& out) {
    struct stat found{};
    if (!look_at(fd, found)) return Fault::kSystem;
    if (!S_ISREG(found.st_mode)) return Fault::kNotAFile;
    const bool ours = found.st_uid == 0 || found.st_uid == call(SYS_geteuid);
    if (!ours || (found.st_mode & kOthersWrite) != 0) return Fault::kForeign;
    if (const Fault fault = check(fd, found); fault != Fault::kNone) return fault;
    return out.map(fd);
}

// Takes the descriptor when it succeeds.
Fault Region::map(int fd) {
    struct stat found{};
    if (!look_at(fd, found)) return Fault::kSystem;
    const long mapped =
        call(SYS_mmap, 0L, long{kFileBytes}, long{PROT_READ | PROT_WRITE}, long{MAP_SHARED}, long{fd}, 0L);
    if (mapped < 0 && mapped > -4096) return Fault::kSystem;
    file_ = reinterpret_cast<File*>(mapped);
    fd_ = fd;
    device_ = found.st_dev;
    inode_ = found.st_ino;
    return Fault::kNone;
}

Fault Region::create(const char* path, const Limits& limits, Region& out) {
    const Place place(path);
    if (!place.fits) return Fault::kSystem;
    const long directory = place.open();
    if (directory < 0) return fault_of(directory);
    const TemporaryName temporary;
    const long made = call(SYS_openat, directory, word(temporary.text),
                           long{O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC}, 0600L);
    if (made < 0) {
        region::close(static_cast<int>(directory));
        return fault_of_making(made);
    }
    const int fd = static_cast<int>(out_of_the_way(made));
    call(SYS_fchmod, fd, 0600L);  // whatever the umask took

    Region region;
    Fault fault = fd < 0 ? Fault::kSystem : reserve(fd);
    if (fault == Fault::kNone) fault = region.map(fd);
    if (fault != Fault::kNone && fd >= 0) region::close(fd);
    bool exists = false;
    if (fault == Fault::kNone) {
        const Self creator = Self::look();
        Header& header = region.header();
        lay_out(header);
        header.creator_start = creator.start_time;
        header.pid_namespace = creator.pid_namespace;
        header.creator_pid = creator.pid;
        header.owner = static_cast<std::uint32_t>(call(SYS_geteuid));
        header.strict = limits.strict ? 1 : 0;
        header.by_hand = 1;
        region.limit(limits);
        const long linked = call(SYS_linkat, directory, word(temporary.text), directory, word(place.name), 0L);
        exists = linked == -EEXIST;
        if (linked < 0) {
            fault = fault_of_making(linked);
            region.close();
        }
    }
    call(SYS_unlinkat, directory, word(temporary.text), 0L);
    region::close(static_cast<int>(directory));
    if (exists) return open(path, out);
    if (fault == Fault::kNone) out = region;
    return fault;
}

void Region::close() {
    call(SYS_munmap, word(file_), long{kFileBytes});
    region::close(fd_);
    *this = {};
}

bool Region::is_this(int fd) const {
    struct stat found{};
    return fd >= 0 && look_at(fd, found) && found.st_dev == device_ && found.st_ino == inode_;
}

int Region::fd() const { return is_this(fd_) ? fd_ : -1; }

void Region::remember(const char* path) {
    const std::size_t bytes = std::strlen(path) + 1;
    if (path[0] == '/' && bytes <= sizeof(own_path)) std::memcpy(own_path, path, bytes);
}

// A descriptor of the same file that shares nothing with those of others: what one has from its parent has its locks.
long Region::reopen() const {
    constexpr long kFlags = O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    Text<40> by_number;
    by_number.add("/proc/self/fd/").add(fd_);
    long opened = fd() < 0 ? -EBADF : out_of_the_way(call(SYS_openat, long{AT_FDCWD}, word(by_number.text), kFlags));
    if (opened < 0 && own_path[0] != '\0') {
        opened = out_of_the_way(call(SYS_openat, long{AT_FDCWD}, word(own_path), kFlags | O_NOFOLLOW));
    }
    if (opened < 0 || is_this(static_cast<int>(opened))) return opened;
    region::close(static_cast<int>(opened));
    return -ENOENT;
}

Operations* Region::operations_of(const Slot& slot) const {
    const auto index = static_cast<std::uint64_t>(&slot - file_->slots);
    const std::uint64_t from = offsetof(File, operations) + index * sizeof(Operations);
    const long own = reopen();
    const Fault fault = reserve(own, from, from + sizeof(Operations));
    region::close(static_cast<int>(own));
    return fault == Fault::kNone ? &file_->operations[index] : nullptr;
}

// A mapping keeps the open file, and with it the lock; a child of fork does not get it.
Locked Region::lock(int slot, void*& page) const {
    page = nullptr;
    const long own = reopen();
    if (own < 0) return is_locked(slot) && fd() >= 0 ? Locked::kTaken : Locked::kUnknown;
    struct flock wanted{.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1, .l_pid = 0};
    const long result = call(SYS_fcntl, own, long{F_OFD_SETLK}, word(&wanted));
    if (result == 0) {
        const long mapped = call(SYS_mmap, 0L, kPageBytes, long{PROT_NONE}, long{MAP_SHARED}, own, 0L);
        if (mapped >= 0 || mapped <= -4096) page = reinterpret_cast<void*>(mapped);
    }
    region::close(static_cast<int>(own));
    if (result == -EAGAIN) return Locked::kTaken;  // EACCES is a security profile's
    if (page == nullptr) return Locked::kUnknown;
    if (call(SYS_madvise, page, kPageBytes, long{MADV_DONTFORK}) == 0 && is_locked(slot)) return Locked::kOurs;
    unlock(page);
    return Locked::kUnknown;
}

void Region::unlock(void* page) {
    if (page != nullptr) call(SYS_munmap, page, kPageBytes);
}

bool Region::is_locked(int slot) const {
    struct flock found{.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1, .l_pid = 0};
    const int own = fd();
    const long asked = own >= 0 ? own : reopen();
    // A lock of the other kind conflicts with those of our own descriptions too.
    const bool locked = call(SYS_fcntl, asked, long{F_GETLK}, word(&found)) != 0 || found.l_type != F_UNLCK;
    if (own < 0 && asked >= 0) region::close(static_cast<int>(asked));
    return locked;
}

int Region::device_index(const std::uint8_t (&uuid)[16]) const {
    std::uint64_t halves[2];
    std::memcpy(halves, uuid, sizeof(halves));
    const std::uint64_t mixed = halves[0] ^ halves[1];
    const std::uint64_t key = mixed != 0 ? mixed : 1;
    for (int index = 0; index < static_cast<int>(kDevices); ++index) {
        Device& entry = device(index);
        std::uint64_t found = entry.key.load();
        if (found == 0 && entry.key.compare_exchange_strong(found, key)) found = key;
        if (found != key) continue;
        for (std::size_t half = 0; half < 2; ++half) {  // again each time: whoever claimed it may have been killed here
            auto* place = reinterpret_cast<std::uint64_t*>(entry.uuid) + half;
            std::atomic_ref<std::uint64_t>(*place).store(halves[half], std::memory_order_relaxed);
        }
        return index;
    }
    return -1;
}

void Region::limit(const Limits& limits) const {
    write(header().memory, limits.memory);
    write(header().cap, limits.cap);
    for (Device& one : file_->devices) {
        clear(one.memory);
        clear(one.cap);
    }
}

void Region::limit(int index, const OwnLimits& own) const {
    Device& one = device(index);
    if (own.memory) write_first(one.memory, *own.memory);
    if (own.cap) write_first(one.cap, *own.cap);
}

// Both words must belong together, and the first be there still when the second was read: else a number that was
// cleared in between, and the check of the next one, would pass for the smallest limit of all. What stays apart was
// left so.
std::optional<std::uint64_t> look(const Limit& limit) {
    constexpr int kAttempts = 64;
    constexpr int kLeft = 32;  // looks in a row that find the same
    std::uint64_t value = 0;
    std::uint64_t check = 0;
    for (int attempt = 0, same = 0; attempt < kAttempts || (same < kLeft && attempt < kAttempts * kAttempts);
         ++attempt) {
        const std::uint64_t before[] = {value, check};
        value = limit.value.load();
        check = limit.check.load();
        if (limit.value.load() == value) {
            if (check == ~value) return value;
            if (value == 0 && check == 0) return std::nullopt;
        }
        same = value == before[0] && check == before[1] ? same + 1 : 0;
        if (attempt > kAttempts / 2) call(SYS_sched_yield);
    }
    return std::min(value, ~check);
}

std::uint64_t read(const Limit& limit) { return look(limit).value_or(0); }

void write(Limit& limit, std::uint64_t value) {
    limit.value.store(value);
    limit.check.store(~value);
}

std::uint64_t read(const Limit& own, const Limit& of_all) {
    const std::optional<std::uint64_t> found = look(own);
    return found ? *found : read(of_all);
}

}  // namespace runlist::region
