#include "core/space.hpp"

#include <atomic>

#include "core/guest.hpp"
#include "core/pages.hpp"

namespace runlist {
namespace {

// A child of fork finds it empty.
struct Mark {
    std::atomic<std::uint32_t> number;
};

constinit std::atomic<Mark*> mark;
constinit std::atomic<std::uint32_t> last;  // that was given, here or in a parent
constinit std::atomic<bool> unmarked;       // the kernel empties nothing

}  // namespace

std::uint32_t own_space() {
    Mark* own = unmarked.load(std::memory_order_relaxed) ? nullptr : made<Mark, Unwiped::kRefused>(mark);
    if (own == nullptr) {
        unmarked.store(true, std::memory_order_relaxed);
        return static_cast<std::uint32_t>(call(SYS_getpid));  // then a process is taken for what it shares, too
    }
    std::uint32_t number = own->number.load(std::memory_order_acquire);
    if (number != 0) return number;
    const std::uint32_t fresh = last.fetch_add(1) + 1;
    return own->number.compare_exchange_strong(number, fresh) ? fresh : number;
}

}  // namespace runlist
