// The device process: sockets in a directory, and the loop that keeps model time and real time together.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/process/process.hpp"
#include "device/rm/service.hpp"
#include "protocol/calibration.autogen.hpp"
#include "shared/unique_fd.hpp"

namespace emulator {

struct ServerOptions {
    std::string directory;
    std::uint32_t gpus = 1;
    std::uint64_t memory_bytes = timing::kDeviceMemory;
    bool exit_with_stdin = false;
};

class Server : private GpuListener {
  public:
    // Throws std::runtime_error with one clear line when the directory cannot be used or is in use.
    explicit Server(const ServerOptions& options);
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;
    ~Server() override;

    // Serves until SIGTERM, SIGINT, or the end of stdin if that was asked for.
    void run();

  private:
    struct Connection {
        UniqueFd fd;
        std::uint64_t id;
        pid_t pid;
        uid_t uid;
        std::unique_ptr<Process> process;  // of nvidia0; none for nvidiactl
    };
    struct DelayedReply {
        UniqueFd socket;
        std::vector<std::byte> bytes;
    };

    void take_directory();
    UniqueFd listen_on(const std::string& name) const;
    void accept_all(int listener, bool gpu);
    void read_control(Connection& connection);
    void read_gpu(Connection& connection);
    void close_connection(int fd);
    void close_orphans();
    bool allow_hello(const Connection& connection, std::uint32_t client);
    // Answers with what `fill` has to say of a GPU, and how much. False when the answer cannot be sent.
    template <typename Entry, std::uint32_t kMost>
    bool list(int fd, std::uint32_t gpu, std::uint32_t (Server::*fill)(std::uint32_t gpu, Time now, Entry* out));
    std::uint32_t list_processes(std::uint32_t gpu, Time now, wire::ListedProcess* out);
    std::uint32_t list_samples(std::uint32_t gpu, Time now, wire::BusySample* out);
    void advance(Time now);
    void send_due_replies(Time now);
    void wait_until(Time deadline);
    void serve(int fd);
    void learn_from(Time late);
    Time next_deadline(Time now);
    void on_progress(std::uint32_t gpu, QueueId queue, double fraction) override;
    void on_complete(std::uint32_t gpu, QueueId queue, Time at) override;
    Process* owner(std::uint32_t gpu, QueueId queue);

    ServerOptions options_;
    UniqueFd lock_;
    UniqueFd epoll_;
    UniqueFd timer_;
    UniqueFd signals_;
    UniqueFd control_listener_;
    UniqueFd gpu_listener_;
    std::vector<Gpu> gpus_;
    RmTree rm_;
    SharedEvents events_;
    RmService service_;
    std::map<int, Connection> connections_;
    std::multimap<Time, DelayedReply> replies_;
    const Time most_early_;
    Time early_;      // so long before anything is due the loop is awake
    Time alarm_ = 0;  // what the timer is set to; 0: it is not
    std::uint64_t next_id_ = 1;
    bool stopping_ = false;
};

}  // namespace emulator
