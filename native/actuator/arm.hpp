// An arm: words to watch, and what to suspend when one of them is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "actuator/steps.hpp"

namespace runlist::actuator {

// A word of a file that others can write, and cut short at any moment. It is waited for, and read by a copy that the
// kernel makes, through a mapping that nobody here looks into: what is missing is an error, no signal. On some file
// systems a read of the file itself would wait for its lock, which its owner may keep; it is made where such copies are
// forbidden.
class Watched {
  public:
    Watched(Descriptor file, std::uint64_t at);
    Watched(Watched&& other) noexcept;
    Watched& operator=(Watched&&) = delete;
    ~Watched();

    // nullopt: it is not there.
    std::optional<std::uint32_t> read() const;
    const void* address() const { return static_cast<std::byte*>(page_) + offset_; }
    bool dropped() const { return dropped_; }
    // Lets go of the file.
    void drop();

    std::uint32_t seen = 0;  // its value at the last look; 0: there was none
    std::uint32_t disturbances = 0;

  private:
    Descriptor file_;
    std::uint64_t at_;
    void* page_ = nullptr;
    std::uint64_t offset_ = 0;
    bool dropped_ = false;
};

// What a driver is asked on one of its files. Each step is sent once.
struct Suspended {
    Descriptor file;
    std::vector<Prepared> off;
    std::vector<Prepared> on;
};

struct Arm {
    std::uint64_t id = 0;
    std::vector<Watched> words;
    std::vector<Suspended> targets;
    bool fired = false;

    // Suspends all targets, each as far as it goes.
    std::vector<Result> fire();
    // Resumes all that `fire` may have suspended.
    void undo();
};

// An arm from a message and what came along. nullopt: it makes no sense.
std::optional<Arm> read_arm(std::span<const std::byte> message, std::vector<Descriptor>& descriptors);

}  // namespace runlist::actuator
