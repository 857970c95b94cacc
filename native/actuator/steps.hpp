// Controls of a driver, prepared by whoever knows the driver: here they are bytes to send.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "protocol/actuator.autogen.hpp"

namespace runlist::actuator {

class Descriptor {
  public:
    Descriptor() = default;
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor() {
        if (number_ >= 0) ::close(number_);
    }

    int get() const { return number_; }

  private:
    int number_ = -1;
};

// What became of a step, or of the first of several that failed: an errno value, and the driver's status.
struct Outcome {
    std::uint32_t error = 0;
    std::uint32_t status = 0;
    bool done() const { return error == 0 && status == 0; }
};

struct Prepared {
    Step head;
    std::vector<std::byte> bytes;  // the argument, then the parameters

    // Whether what it says of itself lies within it.
    bool sound() const;
    // Sends it on an open file of the driver; the bytes are the driver's to change.
    Outcome send(int file);
};

}  // namespace runlist::actuator
