// Modules and the kernels found in them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/exports.hpp"

namespace emulator::cuda {

struct Context;

struct Function {
    std::uint32_t kernel;  // index into the table of emulated kernels
    std::vector<std::uint32_t> parameter_sizes;
    std::vector<std::uint32_t> parameter_offsets;
    std::uint32_t parameter_bytes;
};

struct Module {
    std::map<std::string, std::unique_ptr<Function>> functions;
    Context* context;          // whose memory has its code, and
    std::uint64_t context_id;  // its id: a context that is destroyed takes the code along
    std::uint64_t code;        // where it is
};

// The function that a CUfunction names; nullptr when it names none. The driver's lock is held.
const Function* find_function(const void* handle);

}  // namespace emulator::cuda
