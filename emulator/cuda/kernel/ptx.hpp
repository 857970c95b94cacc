// The entry points that a PTX image declares.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace emulator::cuda {

struct PtxEntry {
    std::string name;
    std::vector<std::uint32_t> parameter_sizes;  // bytes
};

// Nothing when the text is not PTX (no .version and .target).
std::optional<std::vector<PtxEntry>> parse_ptx(std::string_view text);

}  // namespace emulator::cuda
