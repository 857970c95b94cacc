// Removing regions that were made by hand and that nobody uses any more: their makers ended, and nobody else tells.
#pragma once

#include "core/text.hpp"
#include "region/process.hpp"

namespace runlist::region {

// A region that a process makes for itself and its children is named PID-START, as `own_name` has it.
using Name = Text<48>;

Name own_name(const Self& self);

// Removes some of those in a directory whose makers ended and in which nobody has a slot. A process of their trees that
// comes later makes the file anew, by the name that it inherited.
void sweep(const char* directory, const Self& self);

}  // namespace runlist::region
