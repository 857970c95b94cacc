// Names of GPUs.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace emulator {

using Uuid = std::array<std::uint8_t, 16>;

// The same for the same directory and index, different for any other (FNV-1a).
inline Uuid make_uuid(std::string_view directory, std::uint32_t index) {
    Uuid uuid{};
    std::uint64_t hash = 0xCBF29CE484222325;
    const auto mix = [&hash](std::uint8_t byte) { hash = (hash ^ byte) * 0x100000001B3; };
    for (const char c : directory) mix(static_cast<std::uint8_t>(c));
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        mix(static_cast<std::uint8_t>(index));
        mix(static_cast<std::uint8_t>(i));
        uuid[i] = static_cast<std::uint8_t>(hash >> 32);
    }
    return uuid;
}

// GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
inline std::string uuid_text(const Uuid& uuid) {
    std::string text = "GPU-";
    char digits[3];
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(uuid[i]));
        text += digits;
    }
    return text;
}

}  // namespace emulator
