#include "device/memory/address_space.hpp"

#include <sys/mman.h>

#include <iterator>

namespace emulator {
namespace {

constexpr std::size_t kMaxRanges = 1 << 17;
constexpr std::size_t kMaxPieces = 1 << 14;  // the system gives a process some 65,000 mappings

}  // namespace

AddressSpace::~AddressSpace() {
    for (const auto& [address, range] : ranges_) drop(range);
}

void AddressSpace::drop(const Range& range) {
    if (range.mirror) ::munmap(range.memory, range.bytes);
}

bool AddressSpace::overlaps(std::uint64_t address, std::uint64_t bytes) const {
    const auto next = ranges_.lower_bound(address);
    if (next != ranges_.end() && next->first - address < bytes) return true;
    return next != ranges_.begin() && address - std::prev(next)->first < std::prev(next)->second.bytes;
}

bool AddressSpace::add(std::uint64_t address, std::byte* memory, std::uint64_t bytes) {
    if (bytes == 0 || overlaps(address, bytes)) return false;
    ranges_.emplace(address, Range{memory, bytes, false});
    return true;
}

bool AddressSpace::reserve(std::uint64_t address, std::uint64_t bytes) {
    if (bytes == 0 || (address | bytes) % PhysicalMemory::kPage != 0 || bytes > limit_ - reserved_ ||
        address + bytes < address || ranges_.size() >= kMaxRanges || overlaps(address, bytes))
        return false;
    ranges_.emplace(address, Range{nullptr, bytes, true});
    reserved_ += bytes;
    return true;
}

bool AddressSpace::remove(std::uint64_t address) {
    const auto it = ranges_.find(address);
    if (it == ranges_.end()) return false;
    const Range& range = it->second;
    if (range.device) reserved_ -= range.bytes;
    if (range.mirror) pieces_ -= range.parts.size();
    drop(range);
    ranges_.erase(it);
    return true;
}

// The range that holds all of these addresses; the end when none does.
AddressSpace::Ranges::const_iterator AddressSpace::range_of(std::uint64_t address, std::uint64_t bytes) const {
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) return ranges_.end();
    --it;
    const std::uint64_t offset = address - it->first;
    return offset < it->second.bytes && bytes <= it->second.bytes - offset ? it : ranges_.end();
}

// Addresses of our own for the whole range, so that neighbouring blocks are neighbours here too.
bool AddressSpace::make_mirror(Range& range) {
    if (range.mirror) return true;
    void* const memory = ::mmap(nullptr, range.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    range.memory = static_cast<std::byte*>(memory);
    range.mirror = true;
    return true;
}

bool AddressSpace::map(std::uint64_t address, std::uint64_t bytes, const std::shared_ptr<MemoryBlock>& memory,
                       std::uint64_t offset) {
    if (bytes == 0 || (address | bytes | offset) % PhysicalMemory::kPage != 0 || offset > memory->bytes() ||
        bytes > memory->bytes() - offset)
        return false;
    const auto it = range_of(address, bytes);
    if (it == ranges_.end() || !it->second.device) return false;
    Range& range = ranges_.at(it->first);
    const std::uint64_t start = address - it->first;
    const auto next = range.parts.lower_bound(start);
    if (next != range.parts.end() && next->first - start < bytes) return false;
    if (next != range.parts.begin() && start - std::prev(next)->first < std::prev(next)->second.bytes) return false;
    std::byte* const whole = bytes == range.bytes && !range.mirror ? memory->contiguous(offset, bytes) : nullptr;
    if (whole) {
        range.memory = whole;
    } else {
        if (pieces_ >= kMaxPieces || !make_mirror(range)) return false;
        if (!memory->map_at(range.memory + start, offset, bytes)) return false;
        ++pieces_;
    }
    range.parts.emplace(start, Mapping{bytes, memory});
    return true;
}

bool AddressSpace::unmap(std::uint64_t address, std::uint64_t bytes) {
    const auto it = range_of(address, bytes);
    if (it == ranges_.end() || bytes == 0) return false;
    Range& range = ranges_.at(it->first);
    const std::uint64_t start = address - it->first;
    const auto first = range.parts.lower_bound(start);
    const auto last = range.parts.lower_bound(start + bytes);
    if (first == range.parts.end() || first->first != start || first == last) return false;
    std::uint64_t end = start;
    for (auto part = first; part != last; ++part) {
        if (part->first != end) return false;
        end += part->second.bytes;
    }
    if (end != start + bytes) return false;
    if (range.mirror) {
        if (::mmap(range.memory + start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                   0) == MAP_FAILED)
            return false;
        pieces_ -= static_cast<std::size_t>(std::distance(first, last));
    } else {
        range.memory = nullptr;
    }
    range.parts.erase(first, last);
    return true;
}

std::byte* AddressSpace::find(std::uint64_t address, std::uint64_t bytes) const {
    const auto it = range_of(address, bytes);
    if (it == ranges_.end()) return nullptr;
    const Range& range = it->second;
    const std::uint64_t start = address - it->first;
    if (!range.device) return range.memory + start;
    auto part = range.parts.upper_bound(start);
    if (part == range.parts.begin()) return nullptr;
    --part;
    // From part to part, as long as each begins where the one before it ends and its memory has not been freed.
    std::uint64_t reached = part->first;
    for (; part != range.parts.end() && part->first == reached && !part->second.memory.expired(); ++part) {
        reached += part->second.bytes;
        if (reached > start && reached - start >= bytes) return range.memory + start;
    }
    return nullptr;
}

}  // namespace emulator
