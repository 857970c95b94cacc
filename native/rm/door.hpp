// The driver's door: every request to RM passes here. Device memory is charged to the quota before the driver is asked
// for it and refunded when it is freed; new RM clients are told to the daemon; everything else goes straight through.
//
// Exported: `ioctl`, which NVIDIA's libraries call, and `runlist_emulated_ioctl`, with which an emulated GPU's do.
#pragma once

#include <atomic>
#include <cstdint>

#include "region/quota.hpp"

extern "C" int runlist_emulated_ioctl(int fd, unsigned long request, void* argument);

namespace runlist::rm {

using Door = int (*)(int fd, unsigned long request, void* argument);

// Who is told of RM clients. preload.cpp says it as a constant: another library's constructor may make one before our
// own constructors ran.
struct OnClient {
    void (*asked)();  // before one is made
    void (*made)(int control_fd, std::uint32_t client);
    void (*works)(int control_fd, std::uint32_t client);     // it has made an object of one
    void (*computes)(int control_fd, std::uint32_t client);  // that object is a compute engine
};

extern const OnClient on_client;

extern constinit std::atomic<bool> watching;  // false: everything goes straight through

// Device memory that this thread takes now is what the program asks for. Otherwise the driver takes it for itself, and
// it is overhead: for contexts, code, stacks, streams. A program need not call anything that we see to make it do so.
struct Wish {
    bool is_there = false;
    std::int32_t refused_on = -1;  // a GPU by its index in the region, on which the driver was refused memory for it
};
extern constinit thread_local Wish wish;

// One call of the program. For it the driver may come to the door more than once: it asks again after a refusal, or one
// of its functions calls another one. However often it was refused, that is one refusal, and none if it got what it
// wanted in the end.
class Requested {
  public:
    Requested() : outer_(wish) { wish = {.is_there = true}; }
    ~Requested() { wish = outer_; }
    Requested(const Requested&) = delete;
    Requested& operator=(const Requested&) = delete;

    // What the program is told. Whoever calls from within a call of the program only passes it on.
    void ended(bool succeeded) {
        if (succeeded || wish.refused_on < 0) [[likely]]
            return;
        if (outer_.is_there) {
            outer_.refused_on = wish.refused_on;
        } else {
            region::quota.count_refusal(wish.refused_on);
        }
    }

  private:
    Wish outer_;
};

}  // namespace runlist::rm
