#include "hooks/launch.hpp"

#include "region/quota.hpp"
#include "resolve/copies.hpp"

namespace runlist::hooks {

constinit thread_local bool in_hook = false;

const cap::Calls& calls_of(int row) {
    static constinit std::atomic<bool> said{false};  // the cap may have come after the context
    if (!said.load(std::memory_order_relaxed) && region::quota.on() && !said.exchange(true)) {
        region::quota.enforce(region::kCap);
    }
    return resolve::calls_of(row == kLinked ? resolve::copy_of_base(Library::kCuda) : row);
}

}  // namespace runlist::hooks
