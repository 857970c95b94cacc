// A region's file: made, found to be sound, and mapped.
#pragma once

#include <cstdint>
#include <optional>

#include "region/layout.hpp"

namespace runlist::region {

enum class Fault {
    kNone,
    kMissing,
    kNotAFile,
    kForeign,  // another user's, or others may write to it or to the directory where it is to be
    kReadOnly,
    kDenied,   // in a directory of our own
    kNowhere,  // there is no directory for it
    kVersion,
    kDamaged,
    kNoSpace,
    kSystem,
};

// For one line behind the path: "is of another version of Runlist".
const char* describe(Fault fault);

struct Limits {
    std::uint64_t memory = kNoLimit;  // bytes on each GPU
    std::uint64_t cap = kNoLimit;     // ten-thousandths of each GPU's time
    bool strict = false;
};

// What holds on one GPU instead of that; nothing: no limit of its own.
struct OwnLimits {
    std::optional<std::uint64_t> memory;
    std::optional<std::uint64_t> cap;
};

enum class Locked {
    kOurs,
    kTaken,    // another process has it
    kUnknown,  // the file cannot be opened again, or its file system has no such locks
};

// A mapping that stays for the life of the process, and the descriptor that it came from. A copy is the same region.
class Region {
  public:
    // The file must be a regular one of this user or root that others may not write, and be exactly as layout.hpp says.
    static Fault open(const char* path, Region& out);

    // Makes it in a directory that is this user's and that others may not write to. It has its name only when it is
    // complete, and its room on the disk. One that is there already is opened, with the limits that it has.
    static Fault create(const char* path, const Limits& limits, Region& out);

    // Ends the mapping. For whoever only looked.
    void close();

    bool valid() const { return file_ != nullptr; }

    // At least 3, closed by exec; -1 when the program closed it.
    int fd() const;

    Header& header() const { return file_->header; }
    Device& device(int index) const { return file_->devices[index]; }
    Slot& slot(int index) const { return file_->slots[index]; }

    // From where the file may be opened again, by an absolute path that is kept.
    static void remember(const char* path);

    // Locks a slot's byte of the file for as long as this process' memory lasts, whatever descriptors it closes: the
    // kernel drops the lock when the process ends or becomes another program. `page` is what holds it.
    Locked lock(int slot, void*& page) const;
    static void unlock(void* page);

    bool is_locked(int slot) const;  // by anybody; what cannot be told counts as locked

    // A slot's place to tell of clients, with its room on the disk; nullptr where there is none.
    Operations* operations_of(const Slot& slot) const;

    // Where a GPU's entry is; its first use claims one. -1 when all are taken.
    int device_index(const std::uint8_t (&uuid)[16]) const;

    // From now on these hold on all GPUs, except where one is given its own.
    void limit(const Limits& limits) const;

    // Gives a GPU limits of its own, unless it was given any before: by us, or by the daemon.
    void limit(int device, const OwnLimits& own) const;

  private:
    static Fault adopt(int fd, Region& out);
    Fault map(int fd);
    bool is_this(int fd) const;
    long reopen() const;

    File* file_ = nullptr;
    int fd_ = -1;
    std::uint64_t device_ = 0;  // of the file, to recognise the descriptor
    std::uint64_t inode_ = 0;
};

// One look at a limit. Nothing where none was written; that is a state, as a number is, so it is told by the same look:
// between two of them the limit may be cleared.
std::optional<std::uint64_t> look(const Limit& limit);

std::uint64_t read(const Limit& limit);  // 0 where none was written
void write(Limit& limit, std::uint64_t value);

// A GPU's own limit, or the one of all GPUs where it has none.
std::uint64_t read(const Limit& own, const Limit& of_all);

}  // namespace runlist::region
