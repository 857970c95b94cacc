// Our hooks, as addresses.
#pragma once

#include "hooks/functions.hpp"

namespace runlist::hooks {

// The hook of a copy's function by its name; nullptr for none.
void* hook_of_copy(Library library, int row, const char* name);

// Fills in the row of a copy. Called once for each, one at a time.
void add_copy(Library library, int row, const resolve::Object& copy);

}  // namespace runlist::hooks
