// Values of environment variables. Text in, result out.
#pragma once

#include <cstdint>
#include <optional>

namespace runlist::environment {

inline constexpr std::uint64_t kNone = ~std::uint64_t{0};  // no limit

// Nothing for what is malformed, negative or too large. Both allow a fraction, and 0, "max" and "none" for no limit.
std::optional<std::uint64_t> parse_size(const char* text);     // bytes: 8G, 512MiB, 1.5g, 1073741824; units are binary
std::optional<std::uint64_t> parse_percent(const char* text);  // ten-thousandths: 30, 12.5%; from 100 on no limit

std::optional<bool> parse_switch(const char* text);          // 1, true, yes, on; 0, false, no, off
std::optional<int> parse_number(const char* text, int end);  // decimal, from 0 and below `end`

}  // namespace runlist::environment
