// The resource manager's clients and objects: handles, classes and who is under whom.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "device/gpu.hpp"

namespace emulator {

namespace rm_class = rm::class_number;

// Who makes a call, and on which open file.
struct RmCaller {
    std::uint64_t open_file;
    uid_t uid;
    pid_t pid;

    // What the driver asks CAP_SYS_NICE for.
    bool privileged() const { return uid == 0; }
};

// A channel group as the driver's controls see it. The compute groups are also in the GPU's runlist.
struct RmGroup {
    std::uint32_t id;            // of the hardware's own
    std::uint64_t timeslice_us;  // as last set, whatever the size
    std::optional<GroupId> runlist;
    bool shared = false;  // with the other clients of MPS: it does not go with this one
};

struct RmObject {
    std::uint32_t cls;
    std::uint32_t parent;
    std::uint32_t gpu = 0;
    std::uint32_t channel = 0;     // of a channel: its number in the group
    std::uint32_t context_id = 0;  // of a channel
    std::optional<RmGroup> group = {};
    std::shared_ptr<SharedMemory> memory = {};
    std::shared_ptr<EventBuffer> events = {};
    std::shared_ptr<MemoryBlock> block = {};  // of device memory
    bool imported = false;                    // device memory that is charged to another object
    std::array<std::uint32_t, 3> needs = {};  // objects beside its parent with which it goes
};

struct RmClient {
    std::uint64_t open_file;                    // the connection that made it: the only one that may use it
    std::map<std::uint32_t, RmObject> objects;  // without the client itself
    std::uint32_t next_handle;
    std::map<std::uint32_t, std::uint32_t> devices;  // by GPU: the device object that its contexts are under
};

class RmTree {
  public:
    static constexpr std::size_t kMaxObjects = 16384;  // of one client, device memory of its own aside

    explicit RmTree(std::vector<Gpu>& gpus) : gpus_(gpus) {}

    std::uint32_t add_client(std::uint64_t open_file);
    // The clients of an open file.
    std::size_t count_clients(std::uint64_t open_file) const;
    // All objects of a class.
    std::size_t count_objects(std::uint32_t cls) const;
    // A client's object; nullptr when there is none.
    const RmObject* find(std::uint32_t client, std::uint32_t handle) const;

    // A key under which other clients may have this device memory, for as long as it exists. Nothing when the system
    // has no random numbers.
    std::optional<wire::Key> export_memory(const RmObject& object);
    // Makes an object of it under the client's device. nullptr for an unknown key, or a handle that is taken.
    const RmObject* import_memory(std::uint32_t client, std::uint32_t handle, const wire::Key& key);
    // Bytes of a GPU's memory that a client has taken, or imported from one that has freed it since.
    std::uint64_t memory(std::uint32_t client, std::uint32_t gpu) const;
    // Whether a client has a context on a GPU.
    bool has_context(std::uint32_t client, std::uint32_t gpu) const;
    std::vector<std::uint32_t> clients_of(std::uint64_t open_file) const;
    // The client, if this open file made it.
    RmClient* client(std::uint32_t handle, std::uint64_t open_file);
    RmClient* client(std::uint32_t handle);
    // Frees what the open file's clients hold.
    void close_file(std::uint64_t open_file, Time at);

    // Object `handle`, or `client` itself when they are the same.
    bool free(std::uint32_t client, std::uint32_t handle, Time at);

    // The objects of a CUDA context, in the places where CUDA has them. Returns the handles of its channel groups,
    // compute first.
    std::vector<std::uint32_t> add_context(std::uint32_t client, std::uint32_t gpu);
    // Frees a context's objects, given the handle of its compute group.
    void remove_context(std::uint32_t client, std::uint32_t compute_group, Time at);
    // Takes the devices that a client has made for the ones that CUDA made at cuInit, and places what CUDA has beside
    // them. Objects of contexts come after them.
    void adopt_devices(std::uint32_t client);
    // An object made by an ioctl, under the handle that the caller or, given 0, the driver chose. False when it is
    // taken.
    bool add_object(std::uint32_t client, std::uint32_t& handle, RmObject object);

  private:
    void add_device(std::uint32_t client, std::uint32_t start, std::uint32_t gpu);
    std::uint32_t add_group(RmClient& client, std::uint32_t handle, std::uint32_t gpu, bool compute);
    void free_subtree(RmClient& client, std::uint32_t handle, Time at);
    void hand_over(const MemoryBlock& block);

    struct Exported {
        std::weak_ptr<MemoryBlock> block;
        std::uint32_t gpu;
    };

    std::vector<Gpu>& gpus_;
    std::map<std::uint32_t, RmClient> clients_;
    std::map<std::array<std::uint8_t, sizeof(wire::Key)>, Exported> exported_;
    std::uint32_t next_client_ = 0;
    std::uint32_t next_group_id_ = 6;
    std::uint32_t next_context_id_ = 0x34;
};

}  // namespace emulator
