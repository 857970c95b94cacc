// Which driver and card are emulated, as both of the driver's libraries say.
#pragma once

namespace emulator {

constexpr int kCudaVersion = 13000;  // what a driver 580 reports
constexpr int kCapabilityMajor = 9, kCapabilityMinor = 0;

}  // namespace emulator
