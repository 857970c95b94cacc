// One process's CUDA side: its contexts, streams and memory, behind its connection to nvidia0.
#pragma once

#include <sys/types.h>

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "device/address_space.hpp"
#include "device/kernel_code.hpp"
#include "device/rm_tree.hpp"

namespace emulator {

class Process {
  public:
    Process(pid_t pid, uid_t uid, std::vector<Gpu>& gpus, RmTree& rm);
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    ~Process();

    struct Answer {
        wire::Reply reply{};
        int fd = -1;  // to send along; still owned by the process
    };
    // Carries out one request. Nothing for those that are not answered. Sets `broken()` on nonsense.
    std::optional<Answer> handle(const wire::Request& request, Time now);

    // Drops what is queued and leaves its groups. The RM objects stay with the open file that they belong to.
    void end(Time now);

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
    // It said something that no libcuda says: its connection is to be closed.
    bool broken() const { return broken_; }
    // RM objects of its contexts were freed under it: nothing there can run any more.
    bool lost_objects() const;
    // What there is to say of it on a GPU; nothing without a context there.
    std::optional<wire::ListedProcess> describe(std::uint32_t gpu, Time now) const;

  private:
    struct Context {
        std::uint32_t gpu;
        std::uint32_t compute_group;  // RM handle
        GroupId group;                // in the GPU's runlist
    };
    struct Pending {
        wire::Request request;
        std::optional<KernelRun> run;
        Work work;  // of `run`
    };
    struct Stream {
        std::uint32_t context;
        std::uint32_t gpu;
        QueueId queue;
        std::deque<Pending> operations;
        bool started = false;       // the head runs, or waits for something outside the stream
        std::uint64_t watched = 0;  // somebody waits for operations up to this one
        std::uint64_t woken = 0;    // and has been woken for this one
        Time holding_since = 0;     // when its holding kernel was first seen executing
    };

    Answer hello(const wire::Request& request);
    Answer open_context(const wire::Request& request);
    Answer close_context(const wire::Request& request, Time now);
    Answer map(const wire::Request& request);
    Answer export_memory(const wire::Request& request);
    Answer import_memory(const wire::Request& request);
    Answer memory_info(const wire::Request& request) const;
    Answer allocate_host(const wire::Request& request);
    Answer free_host(const wire::Request& request);
    Answer open_stream(const wire::Request& request);
    Answer close_stream(const wire::Request& request, Time now);
    void submit(const wire::Request& request, Time now);
    void watch(const wire::Request& request);

    void pump(std::uint32_t slot, Time at);
    bool start(std::uint32_t slot, Time at);
    void start_copy(std::uint32_t slot, Time at);
    void finish_head(std::uint32_t slot, Time at);
    void notify_dependents(std::uint32_t slot, Time at);
    GroupId join_mps(Gpu& gpu, std::uint32_t context_id);
    wire::BusySample newest_sample(std::uint32_t gpu, Time now) const;
    void leave_group(const Context& context, Time now);
    void release_stream(std::uint32_t slot, Time now);
    void drop_stream(std::uint32_t slot, Time now);
    void wake(std::uint32_t slot);
    void move_data(const wire::Request& request);
    void fail(std::uint32_t context, std::uint32_t result);
    bool sound(std::uint32_t context) const;
    std::uint64_t completed(std::uint32_t slot) const;
    Time deadline(std::uint32_t slot, std::uint64_t sequence, Time now, int depth) const;
    wire::ControlPage& page() const { return *reinterpret_cast<wire::ControlPage*>(page_.data()); }

    pid_t pid_;
    uid_t uid_;
    std::vector<Gpu>& gpus_;
    RmTree& rm_;
    std::uint32_t client_ = 0;
    bool broken_ = false;
    bool mps_ = false;
    int base_priority_ = 0;  // added to its streams'
    SharedMemory page_;
    std::map<std::uint32_t, Context> contexts_;
    std::map<std::uint32_t, Stream> streams_;
    std::map<std::pair<std::uint32_t, QueueId>, std::uint32_t> queues_;  // (gpu, queue) -> stream slot
    std::map<std::uint32_t, std::vector<std::uint32_t>> dependents_;     // stream slot -> those whose head waits for it
    std::map<std::uint64_t, SharedMemory> host_memory_;                  // by the process's address
    AddressSpace memory_;
};

}  // namespace emulator
