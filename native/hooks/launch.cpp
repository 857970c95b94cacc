#include "hooks/launch.hpp"

#include <cerrno>

#include "arrivals/arrivals.hpp"
#include "driver/streams.hpp"
#include "hooks/touch.hpp"
#include "region/quota.hpp"
#include "resolve/elf.hpp"

namespace runlist::hooks {
namespace {

constinit cap::Calls calls[kRows]{};
constinit operations::Calls calls_of_operations[kRows]{};
constinit const operations::Calls* whole_calls[kRows]{};

template <typename Type>
Type* next(const char* name) {
    return reinterpret_cast<Type*>(resolve::next(name));
}

}  // namespace

constinit thread_local bool in_hook = false;

const cap::Calls& calls_in(int row) { return calls[row == kLinked ? resolve::copy_of_base(Library::kCuda) : row]; }

const operations::Calls* operation_calls(int row) {
    return whole_calls[row == kLinked ? resolve::copy_of_base(Library::kCuda) : row];
}

const cap::Calls& calls_of(int row) {
    static constinit std::atomic<bool> said{false};  // the cap may have come after the context
    if (!said.load(std::memory_order_relaxed) && region::quota.on() && !said.exchange(true)) {
        region::quota.enforce(region::kCap);
    }
    return calls_in(row);
}

void set_calls(int row, const resolve::Object& copy) {
    const auto find = [&](const char* symbol) { return copy.symbol(symbol); };
    calls[row] = cap::Calls::of(find);
    calls_of_operations[row] = operations::Calls::of(find);
    whole_calls[row] = calls_of_operations[row].complete() ? &calls_of_operations[row] : nullptr;
}

void say_enforced() {
    region::quota.enforce(cap::on() ? region::kQueries | region::kCap : std::uint64_t{region::kQueries});
    activity::start({.push = next<activity::Cleanup::Push>("_pthread_cleanup_push"),
                     .pop = next<activity::Cleanup::Pop>("_pthread_cleanup_pop")});
}

void count_rest(activity::Own& own, activity::Left left, int row) {
    const int saved = errno;
    if (own.finish(left)) activity::say_work(own);
    if (own.pending.load(std::memory_order_relaxed) != 0) arrivals::worked(own);
    if (own.attends()) prepare_touch(calls_in(row));
    errno = saved;
}

bool is_captured(int row, CUstream stream, bool per_thread) {
    const int saved = errno;
    const bool captured = cap::is_capturing(calls_in(row), cap::stream_of(stream, per_thread));
    errno = saved;
    return captured;
}

CUcontext context_behind(int row, CUstream stream) { return driver::context_of(calls_in(row), stream); }

}  // namespace runlist::hooks
