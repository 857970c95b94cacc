// This process as a tenant: its open segments, and what the daemon knows of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/lock.hpp"
#include "tenant/link.hpp"
#include "tenant/record.hpp"
#include "tenant/segments.hpp"

namespace runlist {

// The daemon is told the one priority that holds, each time that it changes; so what one message missed the next one
// mends. All results are those of runlist.h.
class Tenant {
  public:
    int begin(int priority);
    int end();
    int in_force();
    int say(Kind kind, std::uint64_t nanoseconds, std::int64_t patience_ns = Lock::kPatienceNs);

  private:
    struct State {
        std::uint32_t space = 0;
        Segments segments;
        Link link;
        bool linked = false;
        std::optional<std::int32_t> known;  // the priority that the daemon was told
        std::uint32_t sequence = 0;         // of the last message; 0 is none
        std::uint32_t told = 0;             // of the message that told it
        std::int64_t look_at_ns = 0;        // when to look for a daemon
        std::int64_t wait_from_ns = 0;      // when to wait for the daemon's answers again
    };

    int enter(Caller caller, std::int64_t patience_ns = Lock::kPatienceNs);
    int tell(std::int64_t patience_ns);
    int send(Record record, std::int64_t patience_ns);
    void wait(const Link& link, std::uint32_t sequence);
    bool hear(const Link& link, std::uint32_t last, std::int64_t patience_ns);
    Answer answered() const;
    bool is_answered(std::uint32_t sequence) const;

    Lock lock_;
    State state_;
    std::atomic<Answer> answered_{};  // to the newest message that was answered
};

// Says WORK for this process, if that can be said at once.
void say_work();

// Says ANNOUNCE, likewise. Results are those of runlist.h.
int say_announcement(std::int64_t lead_ns);

// Is called with what a hint says, so that it is used in the process as well. preload.cpp says how.
using OnHint = void (*)(std::uint64_t nanoseconds);
extern const OnHint on_hint;

}  // namespace runlist
