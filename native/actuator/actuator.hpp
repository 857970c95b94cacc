// The actuator of a daemon: suspends the background of a GPU the moment that a program says that it works, whatever the
// daemon does meanwhile.
//
// One thread listens to the daemon, the other waits for the words. What they share has one lock, which is held while
// controls are sent: so an answer to the daemon means that nothing more comes.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "actuator/arm.hpp"
#include "actuator/waiting.hpp"

namespace runlist::actuator {

class Actuator {
  public:
    // On a SOCK_SEQPACKET socket to the daemon.
    explicit Actuator(int daemon) : daemon_(daemon) {}

    // Serves until the daemon's end closes: then it resumes what it suspended, and the daemon has not said to be its
    // own. Or until what it says makes no sense: then the daemon lives, and does it all.
    void serve();

    // Tells the daemon that this kernel cannot do it.
    void tell_unable(int error) const;

  private:
    // A word that is waited for: none for the one that tells of changes here.
    struct Place {
        std::uint64_t arm;
        std::uint32_t word;
    };

    enum class Next : std::uint8_t { kGoOn, kNonsense, kEnd };
    Next take_message();
    void disarm(std::uint64_t id);
    void changed();

    void watch();
    void look();
    bool look(Arm& arm);
    void hear(long woke);
    void fire(Arm& arm, std::uint32_t word);
    void disturb(Arm& arm, std::uint32_t word);
    void drop(Arm& arm, std::uint32_t word);
    Watched* at(const Place& place, Arm*& arm);

    bool has_daemon() const;
    void tell(const Message& message, std::span<const Result> results = {}) const;

    const int daemon_;
    std::vector<std::byte> received_ = std::vector<std::byte>(kMaxBytes);
    std::mutex mutex_;
    std::vector<Arm> arms_;
    bool ending_ = false;
    std::atomic<std::uint32_t> changes_{0};

    Waiting waiting_;
    std::vector<Place> places_;
};

}  // namespace runlist::actuator
