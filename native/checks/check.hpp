// What the checks have in common.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "region/region.hpp"

namespace runlist::checks {

// Ends the program with what does not hold.
inline void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
}

#define REQUIRE(condition) ::runlist::checks::require((condition), #condition)

// A folder that goes with the program.
class Folder {
  public:
    Folder() { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
    ~Folder() {
        for (const char* name : {"region", "input"}) ::unlink(at(name).c_str());
        ::rmdir(path_.c_str());
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    std::string at(const char* name) const { return path_ + "/" + name; }

    // A region in it.
    region::Region region(const region::Limits& limits) const {
        region::Region made;
        REQUIRE(region::Region::create(at("region").c_str(), limits, made) == region::Fault::kNone);
        return made;
    }

  private:
    std::string path_ = "/tmp/runlist-check-XXXXXX";
};

// Memory that children of fork share.
template <typename Type>
Type& shared() {
    void* memory = ::mmap(nullptr, sizeof(Type), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return *new (memory) Type{};
}

// Numbers that look random and are the same in each run.
class Numbers {
  public:
    explicit Numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}

    std::uint64_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }

    // In [0, bound), for a bound above 0.
    std::uint64_t below(std::uint64_t bound) { return next() % bound; }

  private:
    std::uint64_t state_;
};

}  // namespace runlist::checks
