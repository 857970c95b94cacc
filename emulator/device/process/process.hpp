// One process's CUDA side: its contexts, streams and memory, behind its connection to nvidia0.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <vector>

#include "device/memory/address_space.hpp"
#include "device/process/streams.hpp"
#include "device/rm/tree.hpp"

namespace emulator {

class Process {
  public:
    Process(pid_t pid, uid_t uid, std::vector<Gpu>& gpus, RmTree& rm, SharedEvents& events);
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;
    ~Process();

    struct Answer {
        wire::Reply reply{};
        int fd = -1;  // to send along; still owned by the process
    };
    // Carries out one request. Nothing for those that are not answered. Sets `broken()` on nonsense.
    std::optional<Answer> handle(const wire::Request& request, Time now);

    // Drops what is queued. The RM objects stay with the open file that they belong to.
    void end(Time now);

    Streams& streams() { return streams_; }

    // It said something that no libcuda says: its connection is to be closed.
    bool broken() const { return broken_ || streams_.broken(); }
    // RM objects of its contexts were freed under it: nothing there can run any more.
    bool lost_objects() const;
    // Adds what there is to say of its contexts on a GPU to what lists show.
    void describe(std::uint32_t gpu, Time now, wire::ListedProcess& out) const;

  private:
    struct Context {
        std::uint32_t gpu;
        std::uint32_t compute_group;  // RM handle
        GroupId group;                // in the GPU's runlist
    };

    Answer hello(const wire::Request& request);
    Answer open_context(const wire::Request& request, Time now);
    Answer close_context(const wire::Request& request, Time now);
    Answer map(const wire::Request& request);
    Answer export_memory(const wire::Request& request);
    Answer import_memory(const wire::Request& request);
    Answer share_event(const wire::Request& request);
    Answer open_event(const wire::Request& request);
    Answer use_event(const wire::Request& request, Time now);
    Answer memory_info(const wire::Request& request) const;
    Answer allocate_host(const wire::Request& request);
    Answer free_host(const wire::Request& request);
    Answer open_stream(const wire::Request& request);
    void join_mps(Gpu& gpu, RmGroup& own, Time now);
    wire::BusySample newest_sample(std::uint32_t gpu, Time now) const;
    wire::ControlPage& page() const { return *reinterpret_cast<wire::ControlPage*>(page_.data()); }

    pid_t pid_;
    uid_t uid_;
    std::vector<Gpu>& gpus_;
    RmTree& rm_;
    SharedEvents& shared_;
    std::map<std::uint32_t, std::shared_ptr<SharedEvent>> events_;  // of this process, by slot
    std::uint32_t client_ = 0;
    bool broken_ = false;
    bool mps_ = false;
    int base_priority_ = 0;  // added to its streams'
    SharedMemory page_;
    std::map<std::uint32_t, Context> contexts_;
    std::map<std::uint64_t, SharedMemory> host_memory_;  // by the process's address
    AddressSpace memory_;
    Streams streams_;
};

}  // namespace emulator
