// One line to the guest's standard error. No stdio, no allocation, no signal, no waiting; errno stays.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace runlist {

// What matters enough to be said. LIBCUDA_LOG_LEVEL chooses how much is (environment/options.hpp).
enum class Level : int { kError = 0, kWarning = 1 };

// A text that somebody else wrote: cut, and of printable characters only.
struct Quoted {
    const char* text;
};

// A line that is being put together. What does not fit is cut off.
class Line {
  public:
    Line& add(const char* text);
    Line& add(Quoted quoted);
    Line& add(std::unsigned_integral auto number) { return add_number(number); }
    Line& add(std::signed_integral auto number);

    void write();  // with a newline, at once, unless nobody can take it

  private:
    Line& add_number(std::uint64_t number);
    void put(char character);

    static constexpr std::size_t kRoom = 600;  // a pipe takes as much as one piece
    char text_[kRoom];
    std::size_t length_ = 0;
};

Line& Line::add(std::signed_integral auto number) {
    if (number < 0) put('-');
    const auto wide = static_cast<std::uint64_t>(number);
    return add_number(number < 0 ? 0 - wide : wide);
}

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
