// A fuzz target: libFuzzer's function, and for the driver that is here what to begin with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// Inputs that are in order.
std::vector<std::string> seeds();

// Pieces to put into them.
std::vector<std::string> words();
