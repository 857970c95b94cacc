#include "hooks/context.hpp"

namespace runlist::hooks {

constinit std::atomic<CUcontext> primary_contexts[kRows][kOrdinals];

void say_enforced() {
    if (region::quota.on())
        region::quota.enforce(cap::on() ? region::kQueries | region::kCap : std::uint64_t{region::kQueries});
}

}  // namespace runlist::hooks
