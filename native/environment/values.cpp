#include "environment/values.hpp"

#include <cstddef>

#include "protocol/environment.autogen.hpp"
#include "protocol/region.autogen.hpp"

namespace runlist::environment {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr Wide kMost = ~std::uint64_t{0} - 1;

char lower(char character) {
    return character >= 'A' && character <= 'Z' ? static_cast<char>(character - 'A' + 'a') : character;
}

bool is(const char* text, const char* word) {
    for (; lower(*text) == *word; ++text, ++word) {
        if (*word == '\0') return true;
    }
    return false;
}

template <std::size_t count>
bool is_one_of(const char* text, const char* const (&words)[count]) {
    for (const char* word : words) {
        if (is(text, word)) return true;
    }
    return false;
}

bool is_digit(char character) { return character >= '0' && character <= '9'; }

// A decimal number: digits / 10^decimals.
struct Decimal {
    Wide digits = 0;
    Wide scale = 1;
    const char* rest = nullptr;  // what follows it; nullptr if it is none

    // Whole multiples of `unit` in it, rounded down. What is not 0 does not become so, as 0 stands for no limit.
    std::optional<std::uint64_t> times(std::uint64_t unit) const {
        const Wide product = digits * unit;  // fits: see read_decimal
        const Wide whole = product / scale;
        if (whole > kMost || (whole == 0 && digits != 0)) return std::nullopt;
        return static_cast<std::uint64_t>(whole);
    }
};

Decimal read_decimal(const char* text) {
    constexpr Wide kLimit = Wide{1} << 80;  // times a unit of up to 2^40 it fits in 128 bits
    Decimal number;
    bool any = false;
    const auto read_digits = [&](Wide factor) {
        for (; is_digit(*text); ++text) {
            if (number.digits >= kLimit / 16) return false;
            number.digits = number.digits * 10 + static_cast<unsigned>(*text - '0');
            number.scale *= factor;
            any = true;
        }
        return true;
    };
    if (!read_digits(1)) return number;
    if (*text == '.') {
        ++text;
        if (!read_digits(10)) return number;
    }
    if (any) number.rest = text;
    return number;
}

// Bytes of a unit, of which nothing may follow; 0 for none. G and GiB are 1024³, GB is 1000³. A space may be before it.
std::uint64_t unit(const char* text) {
    if (text[0] == ' ' && text[1] != '\0') ++text;
    if (*text == '\0' || is(text, "b")) return 1;
    std::uint64_t binary = 1;
    std::uint64_t decimal = 1;
    for (const char letter : {'k', 'm', 'g', 't'}) {
        binary *= 1024;
        decimal *= 1000;
        if (lower(*text) != letter) continue;
        if (is(text + 1, "b")) return decimal;
        return is_one_of(text + 1, {"", "i", "ib"}) ? binary : 0;
    }
    return 0;
}

bool means_none(const char* text) { return is_one_of(text, names::kUnlimited); }

}  // namespace

std::optional<std::uint64_t> parse_size(const char* text) {
    if (means_none(text)) return kNone;
    const Decimal number = read_decimal(text);
    const std::uint64_t each = number.rest != nullptr ? unit(number.rest) : 0;
    if (each == 0) return std::nullopt;
    const auto bytes = number.times(each);
    return bytes == 0 ? kNone : bytes;
}

std::optional<std::uint64_t> parse_percent(const char* text) {
    constexpr std::uint64_t kWhole = region::kCapUnit;
    if (means_none(text)) return kNone;
    const Decimal number = read_decimal(text);
    if (number.rest == nullptr || !is_one_of(number.rest, {"", "%"})) return std::nullopt;
    const auto share = number.times(kWhole / 100);
    return share == 0 || (share && *share >= kWhole) ? kNone : share;
}

std::optional<bool> parse_switch(const char* text) {
    if (is_one_of(text, names::kOn)) return true;
    if (is_one_of(text, names::kOff)) return false;
    return std::nullopt;
}

std::optional<int> parse_number(const char* text, int end) {
    int number = 0;
    if (!is_digit(*text)) return std::nullopt;
    for (; is_digit(*text); ++text) {
        number = number * 10 + (*text - '0');
        if (number >= end) return std::nullopt;
    }
    if (*text != '\0') return std::nullopt;
    return number;
}

}  // namespace runlist::environment
