#include "actuator/actuator.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>
#include <utility>

#include "core/guest.hpp"

namespace runlist::actuator {

// -- listening -------------------------------------------------------------------------------------

void Actuator::serve() {
    std::thread waits([this] { watch(); });
    Next next = Next::kGoOn;
    while (next == Next::kGoOn) next = take_message();
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
        for (Arm& arm : arms_)
            if (arm.fired && next == Next::kEnd) arm.undo();
        arms_.clear();
        changed();
    }
    waits.join();
}

Actuator::Next Actuator::take_message() {
    iovec part{received_.data(), received_.size()};
    alignas(cmsghdr) static char ancillary[CMSG_SPACE((kMaxWords + kMaxTargets) * sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary;
    message.msg_controllen = sizeof ancillary;
    ssize_t size = -1;
    do size = ::recvmsg(daemon_, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size <= 0) return Next::kEnd;  // an error, too: what it had not read yet is lost with it
    std::vector<Descriptor> descriptors;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int descriptor = -1;
            std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
            descriptors.emplace_back(descriptor);
        }
    }
    Message head{};
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || size < static_cast<ssize_t>(sizeof head))
        return Next::kNonsense;
    std::memcpy(&head, received_.data(), sizeof head);
    if (head.kind == Kind::kDisarm) {
        disarm(head.id);
        return Next::kGoOn;
    }
    if (head.kind != Kind::kArm) return Next::kNonsense;
    auto arm = read_arm({received_.data(), static_cast<std::size_t>(size)}, descriptors);
    if (!arm) return Next::kNonsense;
    const std::lock_guard lock(mutex_);
    arms_.push_back(std::move(*arm));
    changed();
    return Next::kGoOn;
}

void Actuator::disarm(std::uint64_t id) {
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(arms_, [id](const Arm& arm) { return arm.id == id; });
        changed();
    }
    tell({.kind = Kind::kDisarmed, .id = id});
}

// Has the other thread look at all of it anew.
void Actuator::changed() {
    changes_.fetch_add(1);
    call(SYS_futex, &changes_, long{FUTEX_WAKE}, long{INT_MAX});
}

// -- waiting ---------------------------------------------------------------------------------------

void Actuator::watch() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
        look();
        lock.unlock();
        const long woke = waiting_.wait();
        lock.lock();
        hear(woke);
    }
}

// Fires what is to be fired, and gets ready to wait for the rest.
void Actuator::look() {
    waiting_.clear();
    places_.clear();
    waiting_.add(&changes_, changes_.load());
    places_.push_back({});
    for (Arm& arm : arms_) {
        const unsigned before = waiting_.count();
        if (arm.fired || look(arm)) continue;
        waiting_.take_back(before);  // it fired: nobody waits for its other words
        places_.resize(before);
    }
}

// False where it fired.
bool Actuator::look(Arm& arm) {
    for (std::uint32_t i = 0; i < arm.words.size(); ++i) {
        Watched& word = arm.words[i];
        if (word.dropped()) continue;
        const auto value = word.read();
        if (value == 0) {
            fire(arm, i);
            return false;
        }
        if (!value || waiting_.full()) {
            drop(arm, i);
            continue;
        }
        if (word.seen != 0 && word.seen != *value) disturb(arm, i);
        if (word.dropped()) continue;
        word.seen = *value;
        waiting_.add(word.address(), *value);
        places_.push_back({arm.id, i});
    }
    return true;
}

// After a wait: whoever wakes us for nothing, and what cannot be waited for, is left out.
void Actuator::hear(long woke) {
    Arm* arm = nullptr;
    if (woke > 0 && at(places_[static_cast<std::size_t>(woke)], arm) != nullptr) {
        const Place place = places_[static_cast<std::size_t>(woke)];
        if (arm->words[place.word].read() != 0U) disturb(*arm, place.word);
    }
    if (woke != -EFAULT) return;
    for (unsigned i = 1; i < places_.size(); ++i)
        if (at(places_[i], arm) != nullptr && !waiting_.can_wait(i)) drop(*arm, places_[i].word);
}

// The word there, unless it has gone meanwhile, and its arm.
Watched* Actuator::at(const Place& place, Arm*& arm) {
    const auto found = std::ranges::find(arms_, place.arm, &Arm::id);
    if (found == arms_.end() || found->fired || found->words[place.word].dropped()) return nullptr;
    arm = &*found;
    return &found->words[place.word];
}

void Actuator::fire(Arm& arm, std::uint32_t word) {
    if (!has_daemon()) {  // the other thread is about to end it all
        arm.fired = true;
        return;
    }
    const std::vector<Result> results = arm.fire();
    tell({.kind = Kind::kFired, .word = word, .id = arm.id, .targets = static_cast<std::uint32_t>(results.size())},
         results);
}

void Actuator::disturb(Arm& arm, std::uint32_t word) {
    if (++arm.words[word].disturbances >= kMaxDisturbances) drop(arm, word);
}

void Actuator::drop(Arm& arm, std::uint32_t word) {
    arm.words[word].drop();
    tell({.kind = Kind::kDropped, .word = word, .id = arm.id});
}

// -- telling ---------------------------------------------------------------------------------------

bool Actuator::has_daemon() const {
    pollfd state{daemon_, 0, 0};
    return ::poll(&state, 1, 0) == 0 || (state.revents & (POLLHUP | POLLERR)) == 0;
}

void Actuator::tell_unable(int error) const {
    tell({.kind = Kind::kUnable, .error = static_cast<std::uint32_t>(error)});
}

void Actuator::tell(const Message& message, std::span<const Result> results) const {
    iovec parts[] = {{const_cast<Message*>(&message), sizeof message},
                     {const_cast<Result*>(results.data()), results.size_bytes()}};
    msghdr all{};
    all.msg_iov = parts;
    all.msg_iovlen = 2;
    ::sendmsg(daemon_, &all, MSG_NOSIGNAL);  // where nobody hears it, the other thread sees the end
}

}  // namespace runlist::actuator
