// What the environment asks of the library, under our names and HAMi's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "environment/values.hpp"
#include "protocol/region.autogen.hpp"

namespace runlist::environment {

inline constexpr std::size_t kPathBytes = 4096;
inline constexpr int kDevices = region::kDevices;

// What holds on one GPU instead of what holds on each.
struct DeviceLimits {
    std::optional<std::uint64_t> memory;
    std::optional<std::uint64_t> cap;
};

struct Options {
    bool disabled = false;             // everything passes through
    bool strict = false;               // do not run without the limits
    bool expects_limits = false;       // say it when they cannot be held: somebody asked for some
    bool makes_region = false;         // the region's file is made if it is not there: processes agreed on its name
    char region[kPathBytes] = "";      // its path; "" for none
    std::uint64_t memory = kNone;      // bytes on each GPU
    std::uint64_t cap = kNone;         // ten-thousandths of each GPU's time
    DeviceLimits device[kDevices];     // by number, whatever CUDA_VISIBLE_DEVICES hides
    int say_level = 1;                 // Level of core/say.hpp
    char operations[kPathBytes] = "";  // the word for threads, or the path of a page; empty for none
    int operations_client = 0;
    std::int64_t operations_bound_ns = 10'000'000'000;

    bool in_tree() const { return region[0] != '\0' && !makes_region; }  // that somebody else began
    bool has_limits() const;
    bool has_caps() const;  // on any GPU
};

enum class Bad {
    kSize,
    kPercent,
    kSwitch,
    kIndex,
    kLevel,
    kPath,
    kPolicy,
    kOperations,
    kClient,
    kBound,
    kUnsupported,
};

// Whether a limit that somebody asked for is not known because of it.
bool is_about_limits(Bad bad);

// What to say about a variable that cannot be taken: "RUNLIST_MEMORY=\"8Q\" is not ..."
const char* describe(Bad bad);

struct Complaint {
    const char* variable;  // NAME=VALUE, as in the environment
    std::size_t name_length;
    Bad bad;
};

struct Complaints {
    static constexpr int kMost = 8;
    Complaint list[kMost];
    int count = 0;

    void add(const Complaint& complaint) {
        if (count < kMost) list[count++] = complaint;
    }
};

// From NAME=VALUE texts; nullptr ends them. Of a name that is there twice the first counts, as for getenv. What is
// malformed is left out and complained of.
void read(const char* const* environment, Options& options, Complaints& complaints);

}  // namespace runlist::environment
