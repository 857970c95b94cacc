// Slots of processes that live, end, change, close their descriptors and are in other namespaces; limits that are read
// while they change; regions that are swept; the lock that children of all kinds find.
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "checks/check.hpp"
#include "checks/children.hpp"
#include "core/lock.hpp"
#include "region/process.hpp"
#include "region/quota.hpp"
#include "region/slots.hpp"
#include "region/sweep.hpp"

namespace {

using namespace runlist;
using namespace runlist::region;
using runlist::checks::child_that;
using runlist::checks::contained_child_that;
using runlist::checks::expect_end;
using runlist::checks::Folder;
using runlist::checks::Pipes;

constexpr std::uint64_t kPiece = 1 << 20;
constexpr std::uint64_t kLimit = 64 * kPiece;
const char* self_path = nullptr;

std::uint64_t used(const Region& region) {
    std::uint64_t sum = 0;
    for (int index = 0; index < slots_used(region); ++index) {
        const Slot& slot = region.slot(index);
        if (counts(slot.identity.load())) sum += slot.use[0].held.load();
    }
    return sum;
}

int claim_and_hold(const Region& region, std::uint64_t bytes) {
    const int index = claim(region);
    if (index >= 0) region.slot(index).use[0].held.store(bytes);
    return index;
}

bool is_clean(const Slot& slot) {
    for (const Use& use : slot.use) {
        if (use.held.load() + use.overhead.load() + use.asking.load() + use.gpu_ns.load() != 0) return false;
    }
    return slot.enforced.load() == 0;
}

void check_ends(const Region& region) {
    const Pipes pipes;
    const auto act = [&] {
        const int index = claim_and_hold(region, kPiece);
        Slot& slot = region.slot(index);
        REQUIRE(claim(region) == index);  // it has one
        slot.enforced.store(kMemory | kCap);
        slot.use[3].overhead.store(7);
        slot.use[4].asking.store(7);
        slot.use[15].gpu_ns.store(7);
        return std::int64_t{index};
    };
    const pid_t child = child_that(pipes, act);
    const auto index = static_cast<int>(pipes.hear());
    const Slot& slot = region.slot(index);
    REQUIRE(reap(region) == 0 && !is_vacant(region) && used(region) == kPiece);
    REQUIRE(pid_of(slot.identity.load()) == child && state_of(slot.identity.load()) == SlotState::kClaimed);
    REQUIRE(slot.start_time.load() != 0 && slot.image.load() != 0 && slot.locked.load() == 1);
    REQUIRE(region.is_locked(index) && !region.is_locked(index + 1));
    pipes.go_on();
    expect_end(child);
    REQUIRE(!region.is_locked(index) && used(region) == kPiece);
    REQUIRE(reap(region) == 1 && reap(region) == 0 && used(region) == 0 && is_vacant(region));
    REQUIRE(slot.identity.load() == 0 && is_clean(slot) && slot.start_time.load() == 0 && slot.locked.load() == 0);
    REQUIRE(claim(region) == index && is_clean(slot) && pid_of(slot.identity.load()) == ::getpid());
    release(region, index);
    REQUIRE(slot.identity.load() == 0 && !region.is_locked(index) && is_vacant(region));
}

// The pid is used again, or is a zombie's, or the slot is of before there were locks.
void check_without_locks(const Region& region) {
    const Pipes pipes;
    const pid_t child = child_that(pipes, [&] { return std::int64_t{claim_and_hold(region, kPiece)}; });
    const auto index = static_cast<int>(pipes.hear());
    Slot& slot = region.slot(index);
    slot.locked.store(0);
    REQUIRE(reap(region) == 0 && used(region) == kPiece);
    const std::uint64_t began = slot.start_time.load();
    slot.start_time.store(0);  // not yet known
    REQUIRE(reap(region) == 0);
    slot.start_time.store(began);
    pipes.go_on();
    siginfo_t info{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
    REQUIRE(reap(region) == 1 && used(region) == 0);  // a zombie holds nothing
    expect_end(child);

    const pid_t other = child_that(pipes, [&] { return std::int64_t{claim_and_hold(region, kPiece)}; });
    Slot& again = region.slot(static_cast<int>(pipes.hear()));
    again.locked.store(0);
    again.start_time.store(again.start_time.load() - 1);
    REQUIRE(reap(region) == 1);  // another process of this pid
    pipes.go_on();
    expect_end(other);
}

// Those of another pid namespace cannot be seen, but for their locks: also not by who closed all its descriptors first.
void check_namespaces(const Region& region, bool later) {
    for (const bool closes : {false, true}) {
        const Pipes pipes;
        const auto act = [&] {
            REQUIRE(::getpid() == 1);
            if (closes) ::close(region.fd());
            const int index = claim_and_hold(region, kPiece);
            REQUIRE(!closes || region.fd() < 0);
            return std::int64_t{index};
        };
        const pid_t child = contained_child_that(pipes, later, act);
        const std::int64_t said = pipes.hear();
        if (said < 0) {  // none may be made here
            REQUIRE(said == -EPERM || said == -EINVAL || said == -ENOENT || said == -EACCES);
            expect_end(child);
            return;
        }
        const auto index = static_cast<int>(said);
        const Slot& slot = region.slot(index);
        REQUIRE(state_of(slot.identity.load()) == SlotState::kForeign && slot.locked.load() == 1);
        REQUIRE(region.is_locked(index) && reap(region) == 0 && used(region) == kPiece && !is_vacant(region));
        REQUIRE(claim(region) != index);
        release(region, claim(region));
        pipes.go_on();
        expect_end(child);
        REQUIRE(reap(region) == 1 && used(region) == 0);
    }
}

void check_time_namespace() {
    const Pipes pipes;
    const pid_t child =
        contained_child_that(pipes, true, [] { return static_cast<std::int64_t>(Self::look().start_time); }, 0);
    const std::int64_t said = pipes.hear();
    REQUIRE(said != 0);
    if (said > 0) {  // its pid is that of the only child of `child`
        std::string path = "/proc/" + std::to_string(child) + "/task/" + std::to_string(child) + "/children";
        std::FILE* file = std::fopen(path.c_str(), "r");
        int inner = 0;
        REQUIRE(file != nullptr && std::fscanf(file, "%d", &inner) == 1);
        std::fclose(file);
        const Self self = Self::look();
        REQUIRE(!ended(self, inner, static_cast<std::uint64_t>(said)));
        REQUIRE(ended(self, inner, static_cast<std::uint64_t>(said) + 8'640'000));
        pipes.go_on();
    }
    expect_end(child);
}

// One that cannot lock is judged by nobody who does not see it.
void check_no_lock_to_be_had(const Region& region) {
    const Pipes pipes;
    const pid_t child = contained_child_that(pipes, false, [&] {
        const int index = claim_and_hold(region, kPiece);
        return std::int64_t{index};
    });
    const std::int64_t said = pipes.hear();
    if (said < 0) return expect_end(child);
    Slot& slot = region.slot(static_cast<int>(said));
    slot.locked.store(0);
    pipes.go_on();
    expect_end(child);
    REQUIRE(!region.is_locked(static_cast<int>(said)) && reap(region) == 0 && used(region) == kPiece);
    slot.image.store(0);  // killed while it claimed the slot
    REQUIRE(reap(region) == 1 && used(region) == 0);
}

// What its child keeps open is not the parent's lock.
void check_children_that_stay(const Region& region) {
    const Pipes pipes;
    const pid_t parent = ::fork();
    if (parent == 0) {
        pipes.stay_below();
        const int index = claim_and_hold(region, kPiece);
        if (::fork() == 0) {
            pipes.wait();
            ::_exit(0);
        }
        pipes.say(index);
        ::_exit(0);
    }
    const auto index = static_cast<int>(pipes.hear());
    expect_end(parent);
    REQUIRE(!region.is_locked(index) && reap(region) == 1);
    pipes.go_on();
}

void check_exec(const Folder& folder, const Region& region) {
    const Pipes pipes;
    const pid_t child = ::fork();
    if (child == 0) {
        const int index = claim_and_hold(region, kPiece);
        REQUIRE(index >= 0);
        pipes.stay_below();
        ::dup2(pipes.up[1], 100);
        ::dup2(pipes.down[0], 101);
        ::execl(self_path, self_path, "after-exec", folder.at("region").c_str(), nullptr);
        ::_exit(8);
    }
    const pid_t other = child_that(pipes, [&] { return std::int64_t{-1}; });
    std::int64_t first = pipes.hear();
    const std::int64_t second = pipes.hear();
    if (first < 0) first = second;
    REQUIRE(first == 2 * kPiece && used(region) == 2 * kPiece);  // what the new program holds, and nothing else
    pipes.go_on();
    pipes.go_on();
    expect_end(child);
    expect_end(other);
    REQUIRE(reap(region) == 1);
}

int after_exec(const char* path) {
    Region region;
    REQUIRE(Region::open(path, region) == Fault::kNone);
    Region::remember(path);
    forget_old_image(region);
    REQUIRE(used(region) == 0);
    const int index = claim_and_hold(region, 2 * kPiece);
    forget_old_image(region);  // it is of this image
    const auto said = static_cast<std::int64_t>(used(region));
    REQUIRE(index >= 0 && ::write(100, &said, sizeof(said)) == sizeof(said));
    char byte = 0;
    return ::read(101, &byte, 1) == 1 ? 0 : 7;
}

// Another copy of the library starts in a process that has a slot already: also where no lock was to be had.
void check_second_start(const Region& region) {
    const pid_t child = ::fork();
    if (child == 0) {
        Slot& slot = region.slot(claim_and_hold(region, kPiece));
        for (const std::uint64_t locked : {1, 0}) {
            slot.locked.store(locked);
            forget_old_image(region);
            REQUIRE(pid_of(slot.identity.load()) == ::getpid() && used(region) == kPiece);
        }
        ::_exit(0);
    }
    expect_end(child);
    REQUIRE(reap(region) == 1 && used(region) == 0);
}

void check_full(const Region& region) {
    const Self self = Self::look();
    for (int index = 0; index < static_cast<int>(kSlots); ++index) {
        Slot& slot = region.slot(index);
        slot.pid_namespace.store(self.pid_namespace);
        slot.image.store(1);
        slot.identity.store(identity(1, SlotState::kClaimed));
    }
    region.header().slots_used.store(kSlots);
    REQUIRE(claim(region) == -1);
    region.slot(700).start_time.store(1);  // the first process began at another time
    REQUIRE(claim(region) == 700);
    release(region, 700);
    region.header().slots_used.store(kSlots + 5);
    REQUIRE(slots_used(region) == static_cast<int>(kSlots));
    for (int index = 0; index < static_cast<int>(kSlots); ++index) {
        region.slot(index).identity.store(0);
        region.slot(index).image.store(0);
    }
    region.header().slots_used.store(0);
}

// Many claim at the same moment. What nobody has, nobody has locked.
void check_races(const Region& region) {
    for (int round = 0; round < 8; ++round) {
        auto& begin = checks::shared<std::atomic<int>>();
        std::vector<pid_t> children;
        const Pipes pipes;
        for (int number = 0; number < 12; ++number) {
            children.push_back(child_that(pipes, [&] {
                begin.fetch_add(1);
                while (begin.load() < 12) ::sched_yield();
                return std::int64_t{claim(region)};
            }));
        }
        std::set<std::int64_t> indices;
        for (std::size_t number = 0; number < children.size(); ++number) indices.insert(pipes.hear());
        REQUIRE(indices.size() == children.size() && *indices.begin() >= 0);
        for (int index = 0; index < 40; ++index) {
            REQUIRE(region.is_locked(index) == (indices.count(index) == 1));
        }
        for (std::size_t number = 0; number < children.size(); ++number) pipes.go_on();
        for (const pid_t child : children) expect_end(child);
        REQUIRE(reap(region) == static_cast<int>(children.size()));
    }
}

void check_limits(const Region& region) {
    Device& device = region.device(0);
    region.limit({.memory = 900, .cap = 5'000});
    REQUIRE(read(device.memory, region.header().memory) == 900 && read(device.cap, region.header().cap) == 5'000);
    region.limit(0, {.memory = 700, .cap = {}});
    REQUIRE(read(device.memory, region.header().memory) == 700 && look(device.memory) == 700);
    REQUIRE(read(device.cap, region.header().cap) == 5'000 && !look(device.cap));
    region.limit(0, {.memory = 800, .cap = 100});  // it has one
    REQUIRE(read(device.memory, region.header().memory) == 700 && read(device.cap, region.header().cap) == 100);
    device.memory.value.store(300);  // whoever wrote it was killed here
    REQUIRE(look(device.memory) == 300);
    device.memory.value.store(750);
    REQUIRE(look(device.memory) == 700);
    region.limit({.memory = 900, .cap = 5'000});
    REQUIRE(!look(device.memory) && !look(device.cap));
    write(device.memory, 0);
    REQUIRE(look(device.memory) == 0);
    region.limit({.memory = 900, .cap = 5'000});

    std::atomic<bool> done{false};
    std::thread writer([&] {
        for (int round = 0; round < 60'000; ++round) {
            region.limit({.memory = 900, .cap = 5'000});
            region.limit(0, {.memory = 700, .cap = {}});
            write(device.memory, 800);
        }
        done.store(true);
    });
    while (!done.load()) {
        const std::uint64_t seen = read(device.memory, region.header().memory);
        REQUIRE(seen >= 700 && seen <= 900);
    }
    writer.join();
    region.limit({.memory = kLimit});
}

void check_sweep(const Region& region) {
    char folder[] = "/tmp/runlist-sweep-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    const Self self = Self::look();
    const auto at = [&](const std::string& name) { return std::string(folder) + "/" + name; };
    const auto there = [&](const std::string& name) { return ::access(at(name).c_str(), F_OK) == 0; };
    const std::string own = own_name(self).text;
    REQUIRE(own == std::to_string(self.pid) + "-" + std::to_string(self.start_time));
    const std::string gone = std::to_string(self.pid) + "-" + std::to_string(self.start_time + 1);
    for (const std::string& name : {own, gone, std::string("named-5"), gone + "x", std::string("12345")}) {
        Region made;
        REQUIRE(Region::create(at(name).c_str(), {.memory = kLimit}, made) == Fault::kNone);
        made.close();
    }
    const std::string strange = std::to_string(self.pid) + "-" + std::to_string(self.start_time + 2);
    std::fclose(std::fopen(at(strange).c_str(), "w"));  // no region
    const Pipes pipes;
    const pid_t child = child_that(pipes, [&] {
        Region its;
        REQUIRE(Region::open(at(gone).c_str(), its) == Fault::kNone);
        return std::int64_t{claim_and_hold(its, kPiece)};
    });
    REQUIRE(pipes.hear() == 0);
    sweep(folder, self);
    REQUIRE(there(gone) && there(own) && there(strange));  // somebody lives in it
    pipes.go_on();
    expect_end(child);
    Region elsewhere;
    REQUIRE(Region::open(at(gone).c_str(), elsewhere) == Fault::kNone);
    elsewhere.header().pid_namespace += 1;  // nobody here can tell who lives
    sweep(folder, self);
    REQUIRE(there(gone));
    elsewhere.header().pid_namespace -= 1;
    elsewhere.close();
    sweep(folder, self);
    REQUIRE(!there(gone) && there(own) && there("named-5") && there(gone + "x") && there("12345") && there(strange));
    for (const std::string& name : {own, std::string("named-5"), gone + "x", std::string("12345"), strange}) {
        REQUIRE(::unlink(at(name).c_str()) == 0);
    }
    REQUIRE(::rmdir(folder) == 0 && region.valid());
}

Lock lock;

void check_lock() {
    const Caller here = Caller::here();
    REQUIRE(here.space == own_space() && here.space != 0);
    REQUIRE(lock.acquire(here) == 0 && lock.acquire(here) == -EDEADLK && !lock.is_free());
    REQUIRE(lock.acquire({here.space, here.thread + 1}, 0) == -EBUSY);
    std::int64_t from = monotonic_ns();
    for (int attempt = 0; attempt < 40; ++attempt) REQUIRE(lock.acquire({here.space, here.thread + 1}, 0) == -EBUSY);
    REQUIRE(monotonic_ns() - from < 3'000'000'000);  // nobody who has no patience pauses: forty who did took 7 s
    from = monotonic_ns();
    REQUIRE(lock.acquire({here.space, here.thread + 1}, 30'000'000) == -EBUSY && monotonic_ns() - from >= 30'000'000);
    const pid_t forked = ::fork();
    if (forked == 0) {  // its own memory: the holder is not here
        const Caller child = Caller::here();
        const bool other = child.space != here.space;
        const bool got = lock.acquire(child, 0) == 0;
        lock.release();
        ::_exit(other && got && lock.is_free() ? 0 : 1);
    }
    expect_end(forked);
    static char stack[64 << 10];
    const auto share = [](void*) {
        const Caller child = Caller::here();
        const int result = lock.acquire(child, 0);
        return result == -EBUSY ? 0 : 1;
    };
    const pid_t shared = ::clone(share, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
    REQUIRE(shared > 0);
    expect_end(shared);
    REQUIRE(!lock.is_free());
    lock.release();
    REQUIRE(lock.is_free() && lock.acquire(here, 0) == 0);
    lock.release();
}

}  // namespace

int main(int count, char** words) {
    self_path = "/proc/self/exe";
    if (count == 3 && std::strcmp(words[1], "after-exec") == 0) return after_exec(words[2]);
    const runlist::checks::Folder folder;
    const Region region = folder.region({.memory = kLimit});
    Region::remember(folder.at("region").c_str());
    check_lock();
    check_ends(region);
    check_without_locks(region);
    check_namespaces(region, false);
    check_namespaces(region, true);
    check_time_namespace();
    check_no_lock_to_be_had(region);
    check_children_that_stay(region);
    check_exec(folder, region);
    check_second_start(region);
    check_full(region);
    check_races(region);
    check_sweep(region);
    check_limits(region);
    std::puts("ok");
    return 0;
}
