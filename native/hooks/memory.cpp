#include "hooks/memory.hpp"

#include "region/layout.hpp"

namespace runlist::hooks {

constinit std::atomic<std::int8_t> known_devices[kRows][kOrdinals];

bool budget_of(int device, Budget& budget) {
    if (device < 0) return false;
    budget.limit = region::quota.limit(device);
    if (budget.limit == region::kNoLimit) return false;
    budget.used = region::quota.used(device);
    return true;
}

}  // namespace runlist::hooks
