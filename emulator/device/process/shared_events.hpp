// Events that several processes see.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "shared/protocol.hpp"

namespace emulator {

// Whose streams record such events and wait for them.
class EventUser {
  public:
    virtual ~EventUser() = default;
    // What the head of a stream waits for may have happened.
    virtual void look_again(std::uint32_t slot, Time at) = 0;
    // A time before which an operation of a stream cannot have ended.
    virtual Time end_of(std::uint32_t slot, std::uint64_t sequence, Time now, int depth) const = 0;
};

// Records are numbered as they are queued, by whichever process.
class SharedEvent {
  public:
    std::uint64_t last() const { return last_; }
    std::uint64_t queue(EventUser& user, std::uint32_t slot, std::uint64_t sequence);
    // A record was passed, or will never be.
    void done(std::uint64_t number, Time at);
    // Whether all up to a record were.
    bool has_happened(std::uint64_t number) const;
    void await(EventUser& user, std::uint32_t slot);
    void forget(const EventUser& user, std::uint32_t slot);  // that one waits no more
    Time end_of(std::uint64_t number, Time now, int depth) const;

  private:
    struct Place {
        EventUser* user;
        std::uint32_t slot;
        std::uint64_t sequence;
    };

    std::uint64_t last_ = 0;
    std::map<std::uint64_t, Place> pending_;
    std::vector<Place> waiting_;
};

// By keys that cannot be guessed; as long as a process has it.
class SharedEvents {
  public:
    // Nothing where there is no randomness.
    std::shared_ptr<SharedEvent> make(wire::Key& key);
    std::shared_ptr<SharedEvent> find(const wire::Key& key);

  private:
    std::map<std::array<std::uint8_t, sizeof(wire::Key)>, std::weak_ptr<SharedEvent>> events_;
};

}  // namespace emulator
