#include "operations/page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <memory>

#include "core/guest.hpp"
#include "core/pages.hpp"

namespace runlist::operations {
namespace {

constinit std::atomic<int> file{-1};

// A byte of the file for each client, which its process has locked. The kernel takes such a lock back when the process
// ends, however it ends, and a child of fork has none.
flock byte_of(int client, short type) {
    flock lock{};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = client;
    lock.l_len = 1;
    return lock;
}

bool lock_byte(long descriptor, int client, bool wait) {
    flock lock = byte_of(client, F_WRLCK);
    for (int attempt = 0; attempt < (wait ? 1000 : 1); ++attempt) {
        if (call(SYS_fcntl, descriptor, long{F_SETLK}, &lock) == 0) return true;
        if (wait) pause_ns(1'000'000);
    }
    return false;
}

void unlock_byte(long descriptor, int client) {
    flock lock = byte_of(client, F_UNLCK);
    call(SYS_fcntl, descriptor, long{F_SETLK}, &lock);
}

// Who has it: a process id, 0 where it cannot be told, -1 for nobody.
pid_t holder(long descriptor, int client) {
    flock lock = byte_of(client, F_WRLCK);
    if (call(SYS_fcntl, descriptor, long{F_GETLK}, &lock) != 0 || lock.l_type == F_UNLCK) return -1;
    return lock.l_pid;
}

bool is_locked(long descriptor, int client) { return holder(descriptor, client) != -1; }

// Programs that the client starts have the same settings, and go without them: nobody needs to be told of each.
bool is_of_our_session(long descriptor, int client) {
    const pid_t who = holder(descriptor, client);
    return who > 0 && call(SYS_getsid, long{who}) == call(SYS_getsid, 0L);
}

constexpr int kMaking = kClients;  // the byte of who lays the page out

// A file that was cut, or has no room on a disk that is full, would end its readers by SIGBUS: what nobody has laid out
// is written once before anybody maps it.
bool has_room(long descriptor) {
    static constexpr char kZeros[sizeof(Page)]{};
    std::uint64_t magic = 0;
    if (call(SYS_pread64, descriptor, &magic, static_cast<long>(sizeof(magic)), 0L) < 0) return false;
    if (magic != 0) return true;
    return may_be_as_long(sizeof(Page)) &&
           call(SYS_pwrite64, descriptor, kZeros, static_cast<long>(sizeof(Page)), 0L) == long{sizeof(Page)};
}

}  // namespace

Page* make_page() {
    void* pages = map_pages(sizeof(Page));
    if (pages == nullptr) return nullptr;
    Page* page = std::construct_at(static_cast<Page*>(pages));
    page->magic.store(kMagic, std::memory_order_release);
    return page;
}

Page* map_page(const char* path, int client, const char*& why) {
    const long descriptor = out_of_the_way(call(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0L));
    if (descriptor < 0) {
        why = "cannot be opened";
        return nullptr;
    }
    const auto refuse = [&](const char* reason) -> Page* {
        why = reason;
        call(SYS_close, descriptor);
        return nullptr;
    };
    struct stat status{};
    if (call(SYS_fstat, descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return refuse("is no file");
    if (status.st_uid != static_cast<uid_t>(call(SYS_geteuid)) || (status.st_mode & 077) != 0) {
        return refuse("is not this user's own, and nobody else's");
    }
    if (!lock_byte(descriptor, client, false)) {
        return refuse(is_of_our_session(descriptor, client) ? "" : "has that client already");
    }
    if (!lock_byte(descriptor, kMaking, true)) return refuse("is being made for too long");
    if (call(SYS_fstat, descriptor, &status) != 0) return refuse("cannot be made");
    if (status.st_size != 0 && status.st_size != static_cast<off_t>(sizeof(Page))) return refuse("is no page");
    if (!has_room(descriptor)) return refuse("cannot be made");
    const long mapped = call(SYS_mmap, 0L, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0L);
    if (mapped < 0 && mapped > -4096) return refuse("cannot be mapped");
    auto* page = reinterpret_cast<Page*>(mapped);
    if (page->magic.load(std::memory_order_acquire) == 0) {
        std::construct_at(page);
        page->magic.store(kMagic, std::memory_order_release);
    }
    unlock_byte(descriptor, kMaking);
    if (page->magic.load(std::memory_order_acquire) != kMagic) {
        call(SYS_munmap, mapped, sizeof(Page));
        return refuse("is no page");
    }
    if (client == 0) std::construct_at(&page->first);  // what another left there holds nobody
    if (client > 0) std::construct_at(&page->others[client]);
    file.store(static_cast<int>(descriptor), std::memory_order_release);
    return page;
}

std::uint64_t living() {
    const int descriptor = file.load(std::memory_order_acquire);
    if (descriptor < 0) return ~std::uint64_t{0};
    std::uint64_t bits = 0;
    for (int client = 0; client < kClients; ++client) {
        if (is_locked(descriptor, client)) bits |= std::uint64_t{1} << client;
    }
    return bits;  // without this process' own, whose lock it does not see
}

}  // namespace runlist::operations
