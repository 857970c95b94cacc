#include "device/memory/shared.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <utility>

namespace emulator {

SharedMemory::SharedMemory(const char* name, std::uint64_t bytes, Others others) {
    UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return;
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
    if (data == MAP_FAILED) return;
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
    // Sealed after our own mapping, which stays writable.
    const int writing = others == Others::kReadOnly ? F_SEAL_FUTURE_WRITE : 0;
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | writing) == 0) fd_ = std::move(fd);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

SharedMemory::~SharedMemory() {
    if (data_) ::munmap(data_, bytes_);
}

void SharedMemory::discard(std::uint64_t offset, std::uint64_t bytes) const {
    ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes));
}

}  // namespace emulator
