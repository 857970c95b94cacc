// The region that this process is to use: the one that it was given, one that processes agreed on by its name, or one
// that it begins for itself and its children.
#pragma once

#include "core/text.hpp"
#include "environment/options.hpp"
#include "region/region.hpp"

namespace runlist::region {

using Path = Text<environment::kPathBytes>;

// Opens it, or makes it with these limits. `path` becomes its path, or the one at which the fault is; where this
// process begins it, the environment names it to its children. umask is left alone.
//
// A region that nobody named lies in the first of $XDG_RUNTIME_DIR/runlist/regions, /tmp/runlist-UID/regions and
// /dev/shm/runlist-UID/regions that takes it. They are made where they are missing, for this user alone.
Fault find(const environment::Options& options, const Limits& limits, Path& path, Region& out);

}  // namespace runlist::region
