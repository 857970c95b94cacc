// NV_STATUS: the answers of the driver that are given here.
#pragma once

#include <cstdint>

namespace emulator::status {

inline constexpr std::uint32_t kOk = 0x00;
inline constexpr std::uint32_t kDuplicateName = 0x19;
inline constexpr std::uint32_t kInsufficientResources = 0x1A;
inline constexpr std::uint32_t kInsufficientPermissions = 0x1B;
inline constexpr std::uint32_t kInvalidArgument = 0x1F;
inline constexpr std::uint32_t kInvalidClass = 0x22;
inline constexpr std::uint32_t kInvalidClient = 0x23;
inline constexpr std::uint32_t kInvalidLimit = 0x2E;
inline constexpr std::uint32_t kInvalidObject = 0x33;
inline constexpr std::uint32_t kNoMemory = 0x51;
inline constexpr std::uint32_t kNotSupported = 0x56;
inline constexpr std::uint32_t kObjectNotFound = 0x57;

}  // namespace emulator::status
