// Where a process that was given limits by hand puts the region of its tree.
#pragma once

#include <cstdint>

#include "settings/environment.hpp"

namespace runlist::settings {

// A path that is put together without allocating. `fits` is false once it got too long.
struct Path {
    char text[kPathBytes] = "";
    std::size_t length = 0;
    bool fits = true;

    Path& add(const char* more);
    Path& add(std::uint64_t number);
};

// Makes $XDG_RUNTIME_DIR/runlist/regions, or else /tmp/runlist-UID/regions, where it is missing, for this user alone,
// and adds the path to `path`. False when neither can be had, or is not this user's alone to write in. umask is left
// alone.
bool make_place(const char* runtime_directory, Path& path);

}  // namespace runlist::settings
