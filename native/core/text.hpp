// Texts that are put together without allocating.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace runlist {

// A text of at most `room` bytes with its end. What does not fit is cut off, and `fits` is false from then on.
template <std::size_t room>
struct Text {
    char text[room] = "";
    std::size_t length = 0;
    bool fits = true;

    Text& add(char character) {
        if (length + 1 < room) {
            text[length++] = character;
            text[length] = '\0';
        } else {
            fits = false;
        }
        return *this;
    }

    Text& add(std::string_view more) {
        for (const char character : more) add(character);
        return *this;
    }

    Text& add(std::unsigned_integral auto number) {
        char digits[24];
        std::size_t first = sizeof(digits);
        std::uint64_t rest = number;
        do {
            digits[--first] = static_cast<char>('0' + rest % 10);
            rest /= 10;
        } while (rest != 0);
        return add(std::string_view(digits + first, sizeof(digits) - first));
    }
};

}  // namespace runlist
