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
    char text[room]{};
    std::size_t length = 0;
    bool fits = true;

    void clear() {
        text[0] = '\0';
        length = 0;
        fits = true;
    }

    Text& add(char character) {
        if (length + 1 < room) {
            text[length++] = character;
            text[length] = '\0';
        } else {
            fits = false;
        }
        return *this;
    }

    [[gnu::noinline]] Text& add(std::string_view more) {
        for (const char character : more) add(character);
        return *this;
    }

    [[gnu::noinline]] Text& add(std::uint64_t number) {
        char digits[24];
        std::size_t first = sizeof(digits);
        do {
            digits[--first] = static_cast<char>('0' + number % 10);
            number /= 10;
        } while (number != 0);
        return add(std::string_view(digits + first, sizeof(digits) - first));
    }

    Text& add(std::integral auto number) {
        if (number < 0) add('-');
        const auto wide = static_cast<std::uint64_t>(number);
        return add(number < 0 ? 0 - wide : wide);
    }
};

// The decimal number at the beginning of a text, of 19 digits at most. Returns what follows it; nullptr for none.
inline const char* read_number(const char* text, std::uint64_t& number) {
    const char* at = text;
    for (number = 0; *at >= '0' && *at <= '9' && at - text < 19; ++at) {
        number = number * 10 + static_cast<std::uint64_t>(*at - '0');
    }
    return at != text ? at : nullptr;
}

}  // namespace runlist
