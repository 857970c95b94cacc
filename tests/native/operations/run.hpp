// Runs programs on a GPU, by the driver's own functions, and compares.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "program.hpp"

namespace operations {

// What a process has once: a context, kernels, and memory that programs are given in turn.
class Machine {
  public:
    explicit Machine(bool apart);

    static constexpr std::size_t kBuffers = 1024;  // of each kind, at most

    const bool apart;  // no call that may wait for the whole context is made while a gate is closed
    CUcontext context = nullptr;
    std::string image;  // PTX
    CUfunction advance = nullptr;
    CUfunction fill = nullptr;
    CUfunction hold = nullptr;
    CUdeviceptr device = 0;
    std::uint32_t* pinned = nullptr;
    std::uint32_t* gates = nullptr;  // one for each client
    CUgreenCtx green = nullptr;      // where the driver has such

  private:
    void make_green();
};

// What is done around each program: by nobody, or by who schedules its clients.
struct Hooks {
    virtual ~Hooks() = default;
    virtual void begin(int clients) { static_cast<void>(clients); }
    virtual void client(int index) { static_cast<void>(index); }               // in each client's thread
    virtual void slow(const std::string& where) { static_cast<void>(where); }  // what clients are at after seconds
    virtual void end() {}  // clients have ended; what they gave the GPU need not have
};

// Empty when all was right, or else what was not.
std::string run(Machine& machine, const Program& program, Hooks& hooks);

}  // namespace operations
