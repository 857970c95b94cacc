// Our hooks, as addresses.
#pragma once

#include "hooks/table.hpp"

namespace runlist::hooks {

void* hook(int row, Id id);  // nullptr for a function that we only call

}  // namespace runlist::hooks
