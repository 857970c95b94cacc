// What tenant and daemon exchange: one record a datagram, little-endian, as in runlist/tenant.py.
#pragma once

#include <bit>
#include <cstdint>

namespace runlist {

enum class Kind : std::uint16_t { kSegmentBegin = 1, kSegmentEnd = 2, kReportLatency = 3, kHint = 4, kJoin = 5 };

struct Record {
    std::uint32_t magic = 0x314d4c52;  // "RLM1"
    std::uint16_t version = 1;
    Kind kind;
    std::int32_t priority = 0;
    std::uint32_t sequence = 0;
    std::uint64_t nanoseconds = 0;
    std::uint64_t reserved = 0;
};

static_assert(sizeof(Record) == 32 && std::endian::native == std::endian::little);

}  // namespace runlist
