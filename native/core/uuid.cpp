#include "core/uuid.hpp"

#include <cstring>
#include <string_view>

namespace runlist {
namespace {

// The value of a hexadecimal digit; -1 for another character.
int digit(char character) {
    if (character >= '0' && character <= '9') return character - '0';
    if (character >= 'a' && character <= 'f') return character - 'a' + 10;
    if (character >= 'A' && character <= 'F') return character - 'A' + 10;
    return -1;
}

}  // namespace

bool parse_gpu_uuid(const char* text, std::uint8_t (&uuid)[16]) {
    constexpr std::string_view kPrefix = "GPU-";
    if (std::strncmp(text, kPrefix.data(), kPrefix.size()) != 0) return false;
    text += kPrefix.size();
    for (std::uint8_t& byte : uuid) {
        if (*text == '-') ++text;
        const int high = digit(text[0]);
        const int low = high < 0 ? -1 : digit(text[1]);
        if (low < 0) return false;
        byte = static_cast<std::uint8_t>(high << 4 | low);
        text += 2;
    }
    return *text == '\0';
}

}  // namespace runlist
