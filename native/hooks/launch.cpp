#include "hooks/launch.hpp"

#include "region/quota.hpp"
#include "resolve/elf.hpp"

namespace runlist::hooks {
namespace {

constinit cap::Calls calls[kRows]{};

}  // namespace

constinit thread_local bool in_hook = false;

const cap::Calls& calls_of(int row) {
    static constinit std::atomic<bool> said{false};  // the cap may have come after the context
    if (!said.load(std::memory_order_relaxed) && region::quota.on() && !said.exchange(true)) {
        region::quota.enforce(region::kCap);
    }
    return calls[row == kLinked ? resolve::copy_of_base(Library::kCuda) : row];
}

void set_calls(int row, const resolve::Object& copy) {
    calls[row] = cap::Calls::of([&](const char* symbol) { return copy.symbol(symbol); });
}

void say_enforced() {
    region::quota.enforce(cap::on() ? region::kQueries | region::kCap : std::uint64_t{region::kQueries});
}

}  // namespace runlist::hooks
