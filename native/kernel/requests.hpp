// A request: its argument, and the one that is meant by one behind a pointer.
#pragma once

#include "kernel/common.hpp"

namespace runlist::kernel {
namespace {

struct Request {
    const Shape* shape;
    std::uint32_t words[kArgumentBytes / 4];  // the argument
    std::int32_t fd;
    std::uint64_t file;
    std::uint64_t began_ns;

    // A number of the argument.
    ALWAYS std::uint32_t at(const Request& request, std::uint8_t place) {
        return request.words[(place / 4) & (kArgumentBytes / 4 - 1)];
    }
};

// The request that is meant by one behind a pointer.
template <typename Read>
ALWAYS bool unwrap(Call& call, const Shape& shape, Read read) {
    std::uint32_t words[4]{};
    if (read(words, sizeof words, reinterpret_cast<const void*>(call.argument)) != 0) return false;
    const std::uint32_t number = words[(shape.object_at / 4) & 3], bytes = words[(shape.parent_at / 4) & 3];
    const std::uint32_t low = words[(shape.status_at / 4) & 2], high = words[((shape.status_at / 4) & 2) + 1];
    if (number > 0xFF || bytes > 0x3FFF) return false;
    call.request = (call.request & 0xC000FF00u) | bytes << 16 | number;
    call.argument = static_cast<std::uint64_t>(high) << 32 | low;
    return true;
}

}  // namespace
}  // namespace runlist::kernel
