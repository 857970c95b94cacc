// The driver's door: every request to RM passes here. Device memory is charged to the quota before the driver is asked
// for it and refunded when it is freed; new RM clients are told to the daemon; everything else goes straight through.
//
// Exported: `ioctl`, which NVIDIA's libraries call, and `runlist_emulated_ioctl`, with which an emulated GPU's do.
#pragma once

#include <atomic>

namespace runlist::rm {

using Door = int (*)(int fd, unsigned long request, void* argument);

extern constinit std::atomic<bool> watching;  // false: everything goes straight through

// Device memory that this thread takes now is the driver's own, for what the program asked it to do.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local bool overhead;

struct Overhead {
    Overhead() : before_(overhead) { overhead = true; }
    ~Overhead() { overhead = before_; }
    Overhead(const Overhead&) = delete;
    Overhead& operator=(const Overhead&) = delete;

  private:
    bool before_;
};

}  // namespace runlist::rm
