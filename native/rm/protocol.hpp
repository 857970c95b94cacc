// What of NVIDIA's resource manager (RM) matters here: protocol/rm.toml, and how its numbers are read.
#pragma once

#include <linux/ioctl.h>

#include <cstddef>
#include <cstdint>

#include "protocol/rm.autogen.hpp"

namespace runlist::rm {

inline constexpr unsigned long kControlRequest = _IOWR(kMagic, number::kRmControl, Nvos54Control);
inline constexpr unsigned long kFreeRequest = _IOWR(kMagic, number::kRmFree, Nvos00Free);

// Fields of a memory's attributes, as NVOS32_ATTR_* names them.
constexpr std::uint32_t location(std::uint32_t attributes) { return attributes >> 25 & 3; }
inline constexpr std::uint32_t kInVideoMemory = 0;
constexpr std::uint32_t page_size(std::uint32_t attributes) { return attributes >> 23 & 3; }
inline constexpr std::uint64_t kPageBytes[] = {4 << 10, 4 << 10, 64 << 10,
                                               2 << 20};  // by page_size: any, 4K, big, huge

// Where a function of VID_HEAP_CONTROL that allocates has its parameters. The alignment follows the size.
struct HeapFunction {
    std::uint32_t function;
    std::size_t attributes;
    std::size_t size;
};

template <typename Parameters>
constexpr HeapFunction heap_function_of(std::uint32_t function) {
    static_assert(offsetof(Parameters, alignment) == offsetof(Parameters, size) + sizeof(std::uint64_t));
    return {function, offsetof(Parameters, attr), offsetof(Parameters, size)};
}

inline constexpr HeapFunction kHeapAllocations[] = {
    heap_function_of<Nvos32AllocSize>(heap_function::kAllocSize),
    heap_function_of<Nvos32AllocTiledPitchHeight>(heap_function::kAllocTiledPitchHeight),
    heap_function_of<Nvos32AllocSizeRange>(heap_function::kAllocSizeRange),
};

}  // namespace runlist::rm
