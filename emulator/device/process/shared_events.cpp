#include "device/process/shared_events.hpp"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace emulator {

std::uint64_t SharedEvent::queue(EventUser& user, std::uint32_t slot, std::uint64_t sequence) {
    pending_[++last_] = {&user, slot, sequence};
    return last_;
}

void SharedEvent::done(std::uint64_t number, Time at) {
    pending_.erase(number);
    const std::vector<Place> waiting = std::exchange(waiting_, {});
    for (const Place& one : waiting) one.user->look_again(one.slot, at);  // which waits again, if it has to
}

bool SharedEvent::has_happened(std::uint64_t number) const {
    return pending_.empty() || pending_.begin()->first > number;
}

void SharedEvent::await(EventUser& user, std::uint32_t slot) { waiting_.push_back({&user, slot, 0}); }

void SharedEvent::forget(const EventUser& user, std::uint32_t slot) {
    std::erase_if(waiting_, [&](const Place& one) { return one.user == &user && one.slot == slot; });
}

Time SharedEvent::end_of(std::uint64_t number, Time now, int depth) const {
    Time end = now;
    for (const auto& [of, place] : pending_)
        if (of <= number) end = std::max(end, place.user->end_of(place.slot, place.sequence, now, depth));
    return end;
}

std::shared_ptr<SharedEvent> SharedEvents::make(wire::Key& key) {
    std::erase_if(events_, [](const auto& entry) { return entry.second.expired(); });
    if (::getrandom(&key, sizeof key, 0) != static_cast<ssize_t>(sizeof key)) return nullptr;
    auto made = std::make_shared<SharedEvent>();
    events_[std::bit_cast<std::array<std::uint8_t, sizeof(wire::Key)>>(key)] = made;
    return made;
}

std::shared_ptr<SharedEvent> SharedEvents::find(const wire::Key& key) {
    const auto found = events_.find(std::bit_cast<std::array<std::uint8_t, sizeof(wire::Key)>>(key));
    return found == events_.end() ? nullptr : found->second.lock();
}

}  // namespace emulator
