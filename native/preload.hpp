// Puts the parts together when the library comes into a process.
#pragma once

namespace runlist {

// Reads the options and opens the region, once. Called by the constructor, and before it by whatever finds that other
// libraries' constructors use the GPU already.
void start();

// Whether programs are to get our hooks: not if nothing was asked for.
bool is_hooking();

}  // namespace runlist
