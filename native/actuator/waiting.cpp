#include "actuator/waiting.hpp"

#include <cerrno>
#include <ctime>

#include "core/guest.hpp"

namespace runlist::actuator {
namespace {

constexpr long kFutexWaitv = 449;  // the same number on every kind of machine
constexpr std::uint32_t kShared32 = 2;

long waitv(const void* entries, unsigned count, const timespec* until) {
    return call(kFutexWaitv, entries, long{count}, 0L, until, long{CLOCK_MONOTONIC});
}

}  // namespace

int Waiting::unable() {
    const long answer = waitv(nullptr, 0, nullptr);  // which no kernel takes
    return answer == -EINVAL ? 0 : static_cast<int>(answer < 0 ? -answer : ENOSYS);
}

void Waiting::add(const void* word, std::uint32_t value) {
    entries_[count_++] = {value, reinterpret_cast<std::uintptr_t>(word), kShared32, 0};
}

long Waiting::wait() { return waitv(entries_.data(), count_, nullptr); }

bool Waiting::can_wait(unsigned index) {
    const timespec past{};
    return waitv(&entries_[index], 1, &past) != -EFAULT;
}

}  // namespace runlist::actuator
