// UUIDs of GPUs as the driver writes them.
#pragma once

#include <cstdint>

namespace runlist {

// The 16 bytes of "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"; false for anything else, a slice of a GPU (MIG) for one.
bool parse_gpu_uuid(const char* text, std::uint8_t (&uuid)[16]);

}  // namespace runlist
