// The copies of the driver's libraries in the process, in the base namespace and in others (dlmopen).
//
// A copy is met when a program looks up a function in it, or calls one of our exports. From then on it has a row of the
// table (hooks/table.hpp), and stays loaded.
#pragma once

#include "cap/calls.hpp"
#include "hooks/table.hpp"

namespace runlist::resolve {

// The row of the copy in the base namespace; kLinked while there is none.
int copy_of_base(hooks::Library library);

// Whether a copy of the base namespace that was met has a function of that name. Asks nobody.
bool is_of_base(const char* name);

// What dlsym is to answer instead of `found`, which it found through `handle` (nullptr: not through one).
void* hook_or(void* found, void* handle);

// Makes the objects of that handle's namespace call us; nothing for the base namespace, where the dynamic linker does.
void enter_namespace(void* handle);
void expect_namespaces();
bool other_namespaces();  // whether the program ever made one

// What the compute cap uses of a copy.
const cap::Calls& calls_of(int row);

}  // namespace runlist::resolve
