// Memory that the device shares with processes: created and sealed here, so that nobody can cut it short under us.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shared/unique_fd.hpp"

namespace emulator {

class SharedMemory {
  public:
    enum class Others { kWrite, kReadOnly };

    SharedMemory() = default;
    // Sparse: pages appear when touched. `valid()` is false when the system refuses.
    SharedMemory(const char* name, std::uint64_t bytes, Others others = Others::kWrite);
    SharedMemory(SharedMemory&& other) noexcept;
    SharedMemory& operator=(SharedMemory&& other) noexcept;
    ~SharedMemory();

    bool valid() const { return static_cast<bool>(fd_); }
    std::byte* data() const { return data_; }
    std::uint64_t size() const { return bytes_; }
    int fd() const { return fd_.get(); }
    // Gives pages back; they read as zero afterwards.
    void discard(std::uint64_t offset, std::uint64_t bytes) const;

  private:
    UniqueFd fd_;
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

}  // namespace emulator
