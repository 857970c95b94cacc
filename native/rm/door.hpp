// The driver's door: every request to RM passes here. Device memory is charged to the quota before the driver is asked
// for it and refunded when it is freed; new RM clients are told to the daemon; everything else goes straight through.
//
// Exported: `ioctl`, which NVIDIA's libraries call, and `runlist_emulated_ioctl`, with which an emulated GPU's do.
#pragma once

#include <atomic>
#include <cstdint>

extern "C" int runlist_emulated_ioctl(int fd, unsigned long request, void* argument);

namespace runlist::rm {

using Door = int (*)(int fd, unsigned long request, void* argument);

// Who is told of RM clients. preload.cpp says it as a constant: another library's constructor may make one before our
// own constructors ran.
struct OnClient {
    void (*asked)();  // before one is made
    void (*made)(int control_fd, std::uint32_t client);
};

extern const OnClient on_client;

extern constinit std::atomic<bool> watching;  // false: everything goes straight through

// Device memory that this thread takes now is what the program asks for. Otherwise the driver takes it for itself, and
// it is overhead: for contexts, code, stacks, streams. A program need not call anything that we see to make it do so.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local bool requested;

struct Requested {
    Requested() : before_(requested) { requested = true; }
    ~Requested() { requested = before_; }
    Requested(const Requested&) = delete;
    Requested& operator=(const Requested&) = delete;

  private:
    bool before_;
};

}  // namespace runlist::rm
