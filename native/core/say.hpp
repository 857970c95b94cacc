// One line to the guest's standard error. No stdio, no allocation, no signal, no waiting; errno stays.
#pragma once

#include "core/text.hpp"

namespace runlist {

// What matters enough to be said. LIBCUDA_LOG_LEVEL chooses how much is (environment/options.hpp).
enum class Level : int { kError = 0, kWarning = 1 };

// A text that somebody else wrote: cut, and of printable characters only.
struct Quoted {
    const char* text;
};

// A line that is being put together.
struct Line : Text<600> {  // a pipe takes as much as one piece
    using Text::add;
    Line& add(Quoted quoted);

    void write();  // with a newline, at once, unless nobody can take it
};

void set_say_level(int level);  // lines above it are not said; kWarning at first
bool is_said(Level level);

// say(Level::kWarning, "region ", Quoted{path}, " is damaged");
template <typename... Parts>
void say(Level level, Parts... parts) {
    if (!is_said(level)) return;
    Line line;
    line.add("runlist: ");
    (line.add(parts), ...);
    line.write();
}

}  // namespace runlist
