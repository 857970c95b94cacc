#include "cap/calls.hpp"

#include "resolve/elf.hpp"

namespace runlist::cap {

Calls calls(const void* object) {
    return {
#define NEEDED(name, symbol) .name = reinterpret_cast<decltype(&::name)>(resolve::in_object_of(object, symbol)),
#define USEFUL(name, symbol) NEEDED(name, symbol)
#include "cap/calls.inc"
#undef NEEDED
#undef USEFUL
    };
}

}  // namespace runlist::cap
