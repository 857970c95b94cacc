// Copies and fills of memory that lies in one piece.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/driver/exports.hpp"

namespace emulator::cuda {

// One copy between addresses of any kind. `wait`: return when it is done. Takes the driver's lock itself.
CUresult copy(std::uint64_t to, std::uint64_t from, std::size_t bytes, CUstream stream, bool wait);
// `count` elements of `width` bytes: 1, 2 or 4. Takes the lock itself.
CUresult fill(std::uint64_t to, std::uint32_t value, std::uint32_t width, std::size_t count, CUstream stream);

}  // namespace emulator::cuda
