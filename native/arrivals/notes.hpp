// What tells one message from others: its beginning, pieces of it further on, its length, and where it came in. Each of
// these is a kind with a record of its own, so that it is known again where only a part of it is the same each time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "arrivals/learnt.hpp"
#include "arrivals/sockets.hpp"

namespace runlist::arrivals {

// The places in `Learnt` of all that is known of one message.
class Note {
  public:
    static constexpr unsigned kLengths = 2;  // in how many ways its length is looked at
    static constexpr unsigned kPieces = 16;
    static constexpr std::size_t kPieceBytes = 8;
    static constexpr std::size_t kMost = kPieces * kPieceBytes;  // of a message, that are ever looked at

    // Its first part, and the one that was read right after it: many protocols have the length before the message.
    void begin(Learnt& learnt, Door door, const unsigned char* bytes, std::size_t count);
    void go_on(Learnt& learnt, Door door, const unsigned char* bytes, std::size_t count);

    // Whether work is to be expected, and how soon after it came in.
    bool leads_to_work(const Learnt& learnt, std::int64_t& lead_ns) const;

    void led_to_work(Learnt& learnt, std::int64_t lead_ns) const;
    void led_nowhere(Learnt& learnt) const;

  private:
    static constexpr unsigned kOfPart = kLengths + kPieces;
    static constexpr unsigned kBeginning = 0, kDoor = 1, kFirst = 2, kSecond = kFirst + kOfPart;
    static constexpr unsigned kAll = kSecond + kOfPart;

    void look(Learnt& learnt, unsigned part, Door door, const unsigned char* bytes, std::size_t count);

    std::array<std::atomic<Learnt::Place>, kAll> places_;
};

}  // namespace runlist::arrivals
