// The streams of a process: operations in order, their effect on memory, and when somebody has to be told.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "device/gpu.hpp"
#include "device/memory/address_space.hpp"
#include "device/process/kernel_code.hpp"
#include "device/process/shared_events.hpp"

namespace emulator {

class Streams : private EventUser {
  public:
    Streams(std::vector<Gpu>& gpus, const AddressSpace& memory) : gpus_(gpus), memory_(memory) {}
    Streams(const Streams&) = delete;
    Streams& operator=(const Streams&) = delete;

    // The page that its owner reads. Comes before all else.
    void share(wire::ControlPage& page) { page_ = &page; }

    // False when the request's slot is none, or taken.
    bool open(const wire::Request& request, std::uint32_t gpu, GroupId group, int priority);
    // Closes a stream whose owner lives: whoever waits for what will not come goes on, and the slot's numbers do. False
    // when there is none.
    bool close(std::uint32_t slot, Time now);
    // The same for all streams of a context.
    void close_context(std::uint32_t context, Time now);
    // Drops everything: the owner is gone.
    void end(Time now);

    // With the shared event that it records or waits for, if it does.
    void submit(const wire::Request& request, Time now, const std::shared_ptr<SharedEvent>& event = nullptr);
    void watch(const wire::Request& request);
    void host_done(const wire::Request& request, Time now);

    void on_progress(std::uint32_t gpu, QueueId queue, double fraction);
    void on_complete(std::uint32_t gpu, QueueId queue, Time at);

    // The earliest time at which somebody here could have to be told something; kNever when nobody waits.
    Time next_deadline(Time now) const;
    // Gets ready what ends before `before`: wakes those who wait, so that they are on a processor when it does, and
    // executes the kernel's blocks, so that its end is not late by the time that takes here.
    void prepare(Time before, Time now);
    // Looks at the flags that executing kernels wait for. Returns when to look again.
    Time poll_flags(Time now);

    bool owns(std::uint32_t gpu, QueueId queue) const { return queues_.contains({gpu, queue}); }
    // The owner said something that no libcuda says.
    bool broken() const { return broken_; }

  private:
    struct Pending {
        wire::Request request;
        std::optional<KernelRun> run;
        Work work;  // of `run`
        std::shared_ptr<SharedEvent> event = nullptr;
        std::uint64_t record = 0;  // its number
    };
    struct Stream {
        std::uint32_t context;
        std::uint32_t gpu;
        QueueId queue;
        std::deque<Pending> operations = {};
        bool started = false;       // the head runs, or waits for something outside the stream
        std::uint64_t watched = 0;  // somebody waits for operations up to this one
        std::uint64_t woken = 0;    // and has been woken for this one
        Time holding_since = 0;     // when its holding kernel was first seen executing

        std::uint64_t key() const { return (std::uint64_t{gpu} << 32) | queue; }
    };

    void drop(std::uint32_t slot, Time now);
    void pump(std::uint32_t slot, Time at);
    bool start(std::uint32_t slot, Time at);
    void start_copy(std::uint32_t slot, Time at);
    void finish_head(std::uint32_t slot, Time at);
    void notify_dependents(std::uint32_t slot, Time at);
    void look_again(std::uint32_t slot, Time at) override;
    Time end_of(std::uint32_t slot, std::uint64_t sequence, Time now, int depth) const override;
    void wake(std::uint32_t slot);
    void move_data(const wire::Request& request);
    void fail(std::uint32_t context, std::uint32_t result);
    bool sound(std::uint32_t context) const;
    std::uint64_t completed(std::uint32_t slot) const;
    Time deadline(std::uint32_t slot, std::uint64_t sequence, Time now, int depth) const;

    std::vector<Gpu>& gpus_;
    const AddressSpace& memory_;
    wire::ControlPage* page_ = nullptr;
    bool broken_ = false;
    std::map<std::uint32_t, Stream> streams_;                            // by slot
    std::map<std::pair<std::uint32_t, QueueId>, std::uint32_t> queues_;  // (gpu, queue) -> slot
    std::map<std::uint32_t, std::vector<std::uint32_t>> dependents_;     // slot -> those whose head waits for it
};

}  // namespace emulator
