#include "arrivals/notes.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/relaxed.hpp"

namespace runlist::arrivals {
namespace {

constexpr std::size_t kBeginningBytes = 16;
constexpr int kBitsOfLength[Note::kLengths] = {2, 3};  // roughly, and less so

// How often something must have been seen, and how many times as often one way as the other.
struct Clear {
    std::uint32_t seen;
    std::uint32_t majority;
};
constexpr Clear kByBeginning{3, 3}, kByPiece{5, 5}, kByDoor{8, 8};

enum class Says : std::uint8_t { kNothing, kMixed, kNo, kYes };

Says said(const Learnt::Record& record, const Clear& clear) {
    if (record.hits + record.misses < clear.seen) return Says::kNothing;
    if (record.hits >= clear.seen && record.hits >= clear.majority * record.misses) return Says::kYes;
    return record.misses >= clear.majority * record.hits ? Says::kNo : Says::kMixed;
}

std::uint64_t mixed(std::uint64_t sum, std::uint64_t next) {
    sum = (sum ^ next) * 0x9E37'79B9'7F4A'7C15;
    return sum ^ sum >> 29;
}

// Of so many bytes that are looked at in WHICH way; or of their number alone, without any.
std::uint64_t kind_of(unsigned which, Door door, const unsigned char* bytes, std::size_t count) {
    std::uint64_t sum = mixed(which, door);
    for (std::size_t at = 0; bytes != nullptr && at < count; at += sizeof(sum)) {
        std::uint64_t next = 0;
        std::memcpy(&next, bytes + at, std::min(sizeof(next), count - at));
        sum = mixed(sum, next);
    }
    return mixed(sum, count) | 1;
}

// Lengths that begin with the same so many bits are one.
std::uint64_t rough(std::uint64_t length, int bits) {
    const int shift = std::max(0, static_cast<int>(std::bit_width(length)) - bits);
    return length >> shift << shift;
}

}  // namespace

void Note::look(Learnt& learnt, unsigned part, Door door, const unsigned char* bytes, std::size_t count) {
    unsigned which = kFirst;  // what is looked at; the same in both parts, as nobody knows where a message begins
    const auto put = [&](Learnt::Place place) { places_[part + which++ - kFirst].store(place, kRelaxed); };
    for (const int bits : kBitsOfLength) put(learnt.find(kind_of(which, door, nullptr, rough(count, bits))));
    for (std::size_t at = 0; at < kMost; at += kPieceBytes) {
        const bool there = at + kPieceBytes <= count;
        put(there ? learnt.find(kind_of(which, door, bytes + at, kPieceBytes)) : Learnt::kNowhere);
    }
}

void Note::begin(Learnt& learnt, Door door, const unsigned char* bytes, std::size_t count) {
    const std::size_t beginning = std::min(count, kBeginningBytes);
    places_[kBeginning].store(learnt.find(kind_of(kBeginning, door, bytes, beginning)), kRelaxed);
    places_[kDoor].store(learnt.find(kind_of(kDoor, door, nullptr, 0)), kRelaxed);
    look(learnt, kFirst, door, bytes, count);
    for (unsigned which = kSecond; which < kAll; ++which) places_[which].store(Learnt::kNowhere, kRelaxed);
}

void Note::go_on(Learnt& learnt, Door door, const unsigned char* bytes, std::size_t count) {
    look(learnt, kSecond, door, bytes, count);
}

// By its beginning, where that is known and clear. Else by what is clearest of the rest of it; and where all of it is
// new each time, by what came in at the same door.
bool Note::leads_to_work(const Learnt& learnt, std::int64_t& lead_ns) const {
    const auto at = [&](unsigned which) { return learnt.at(places_[which].load(kRelaxed)); };
    const Learnt::Record beginning = at(kBeginning);
    const Says first = said(beginning, kByBeginning);
    lead_ns = beginning.lead_ns;
    if (first == Says::kYes || first == Says::kNo) return first == Says::kYes;
    Says clearest = Says::kNothing;
    std::uint32_t best = 0;
    for (unsigned which = kFirst; which < kAll; ++which) {
        const Learnt::Record record = at(which);
        const Says says = said(record, kByPiece);
        if (says != Says::kYes && says != Says::kNo) continue;
        const std::uint32_t one_way = 256 * std::max(record.hits, record.misses) / (record.hits + record.misses + 1);
        if (one_way <= best) continue;
        best = one_way;
        clearest = says;
        lead_ns = record.lead_ns;
    }
    if (clearest != Says::kNothing) return clearest == Says::kYes;
    const Learnt::Record all = at(kDoor);
    lead_ns = all.lead_ns;
    return first == Says::kNothing && said(all, kByDoor) == Says::kYes;
}

void Note::led_to_work(Learnt& learnt, std::int64_t lead_ns) const {
    for (const auto& place : places_) learnt.led_to_work(place.load(kRelaxed), lead_ns);
}

void Note::led_nowhere(Learnt& learnt) const {
    for (const auto& place : places_) learnt.led_nowhere(place.load(kRelaxed));
}

}  // namespace runlist::arrivals
