// Device memory, pinned host memory, copies and fills.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "driver.hpp"

namespace emulator::cuda {
namespace {

bool is_device(std::uint64_t address) { return address >= wire::kDeviceAddressBase; }

// Is [address, address + bytes) within one allocation?
bool within(const std::map<std::uint64_t, Allocation>& memory, std::uint64_t address, std::uint64_t bytes) {
    auto it = memory.upper_bound(address);
    if (it == memory.begin()) return false;
    --it;
    const std::uint64_t offset = address - it->first;
    return offset < it->second.bytes && bytes <= it->second.bytes - offset;
}

std::map<std::uintptr_t, HostAllocation>::const_iterator pinned(const Driver& driver, std::uintptr_t address) {
    auto it = driver.host_memory.upper_bound(address);
    if (it == driver.host_memory.begin()) return driver.host_memory.end();
    --it;
    return address - it->first < it->second.bytes ? it : driver.host_memory.end();
}

bool is_pinned(const Driver& driver, const void* pointer, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    const auto it = pinned(driver, address);
    return it != driver.host_memory.end() && bytes <= it->second.bytes - (address - it->first);
}

CUresult allocate_host(Driver& driver, Context& context, std::size_t bytes, unsigned flags, void*& made) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t rounded = (bytes + page - 1) / page * page;
    // The address is reserved first: the device knows the memory by it.
    void* address = ::mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    wire::Request request{
        .call = wire::Call::kAllocateHost, .address = reinterpret_cast<std::uintptr_t>(address), .bytes = rounded};
    wire::Reply reply{};
    int fd = -1;
    CUresult result = driver.connection.call(request, reply, &fd);
    if (result == CUDA_SUCCESS &&
        ::mmap(address, rounded, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (fd >= 0) ::close(fd);
    if (result != CUDA_SUCCESS) {
        ::munmap(address, rounded);
        return result;
    }
    driver.host_memory[reinterpret_cast<std::uintptr_t>(address)] = {rounded, flags, &context};
    made = address;
    return CUDA_SUCCESS;
}

// Pageable memory passes through pinned buffers, as in CUDA.
class Staging {
  public:
    static constexpr std::size_t kPiece = 2 << 20;
    static constexpr std::size_t kPieces = 4;

    // A piece that no copy uses any more. Waits without the lock.
    CUresult take(Driver& driver, Context& context, std::unique_lock<std::mutex>& guard, std::size_t& piece) {
        if (!memory_) {
            if (const CUresult result = allocate_host(driver, context, kPiece * kPieces, 0, memory_);
                result != CUDA_SUCCESS)
                return result;
        }
        piece = next_;
        next_ = (next_ + 1) % kPieces;
        const Use use = uses_[piece];
        if (!use.used || is_done(driver, use.stream, use.sequence)) return CUDA_SUCCESS;
        guard.unlock();
        const CUresult result = wait_for(driver, context, use.stream, use.sequence);
        guard.lock();
        return result;
    }

    void used_by(std::size_t piece, const Stream& stream) { uses_[piece] = {true, stream.slot, stream.submitted}; }
    std::byte* at(std::size_t piece) const { return static_cast<std::byte*>(memory_) + piece * kPiece; }

  private:
    struct Use {
        bool used = false;
        std::uint32_t stream = 0;
        std::uint64_t sequence = 0;
    };
    void* memory_ = nullptr;
    std::size_t next_ = 0;
    Use uses_[kPieces];
};

Staging staging;
std::mutex staging_lock;  // one pageable copy at a time; taken before the driver's lock

CUresult queue_copy(Driver& driver, Stream& stream, std::uint64_t to, std::uint64_t from, std::size_t bytes) {
    wire::Request request{.operation = wire::Operation::kCopy};
    request.copy = {.destination = to, .source = from, .bytes = bytes};
    return submit(driver, stream, request);
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// One copy between addresses of any kind. `wait`: return when it is done.
CUresult copy(std::uint64_t to, std::uint64_t from, std::size_t bytes, CUstream handle, bool wait) {
    EMULATOR_ENTER_CONTEXT();
    Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (bytes == 0) return CUDA_SUCCESS;
    for (const std::uint64_t address : {to, from})
        if (is_device(address) && !within(driver.memory, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const auto pageable = [&](std::uint64_t address) {
        return !is_device(address) && !is_pinned(driver, reinterpret_cast<const void*>(address), bytes);
    };
    const bool stage_in = pageable(from);
    const bool stage_out = pageable(to);
    if (stage_in && stage_out) {
        guard.unlock();
        if (const CUresult result = wait_for(driver, context, stream->slot, stream->submitted); result != CUDA_SUCCESS)
            return result;
        std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
        return CUDA_SUCCESS;
    }
    if (!stage_in && !stage_out) {
        const CUresult result = queue_copy(driver, *stream, to, from, bytes);
        if (result != CUDA_SUCCESS || !wait) return result;
        const std::uint64_t sequence = stream->submitted;
        guard.unlock();
        return wait_for(driver, context, stream->slot, sequence);
    }
    guard.unlock();
    const std::lock_guard staged(staging_lock);
    guard.lock();
    for (std::size_t done = 0; done < bytes; done += Staging::kPiece) {
        const std::size_t part = std::min(Staging::kPiece, bytes - done);
        std::size_t piece = 0;
        if (const CUresult result = staging.take(driver, context, guard, piece); result != CUDA_SUCCESS) return result;
        std::byte* buffer = staging.at(piece);
        if (stage_in) std::memcpy(buffer, reinterpret_cast<const std::byte*>(from) + done, part);
        const CUresult result = queue_copy(driver, *stream, stage_out ? address_of(buffer) : to + done,
                                           stage_in ? address_of(buffer) : from + done, part);
        if (result != CUDA_SUCCESS) return result;
        staging.used_by(piece, *stream);
        if (!stage_out && !(wait && done + part == bytes)) continue;
        const std::uint64_t sequence = stream->submitted;
        guard.unlock();
        const CUresult waited = wait_for(driver, context, stream->slot, sequence);
        guard.lock();
        if (waited != CUDA_SUCCESS) return waited;
        if (stage_out) std::memcpy(reinterpret_cast<std::byte*>(to) + done, buffer, part);
    }
    return CUDA_SUCCESS;
}

CUresult fill(CUdeviceptr to, std::uint32_t value, std::uint32_t width, std::size_t count, CUstream handle) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    Stream* stream = find_stream(driver, handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (count == 0) return CUDA_SUCCESS;
    if (to % width != 0 || count > ~0ULL / width) return CUDA_ERROR_INVALID_VALUE;
    if (is_device(to) ? !within(driver.memory, to, count * width)
                      : !is_pinned(driver, reinterpret_cast<const void*>(to), count * width))
        return CUDA_ERROR_INVALID_VALUE;
    wire::Request request{.operation = wire::Operation::kFill};
    request.fill = {.destination = to, .count = count, .value = value, .width = width};
    return submit(driver, *stream, request);
}

}  // namespace
}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuMemGetInfo(std::size_t* free, std::size_t* total) {
    EMULATOR_ENTER_CONTEXT();
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    wire::Request request{.call = wire::Call::kMemoryInfo, .gpu = static_cast<std::uint32_t>(context.gpu)};
    wire::Reply reply{};
    const CUresult result = driver.connection.call(request, reply);
    *free = reply.bytes;
    *total = reply.total;
    return result;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
    EMULATOR_ENTER_CONTEXT();
    if (!address || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    wire::Request request{.call = wire::Call::kAllocate, .context = context.slot, .bytes = bytes};
    wire::Reply reply{};
    const CUresult result = driver.connection.call(request, reply);
    if (result != CUDA_SUCCESS) return result;
    driver.memory[reply.address] = {bytes, &context};
    *address = reply.address;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address) {
    EMULATOR_ENTER_CONTEXT();
    if (address == 0) return CUDA_SUCCESS;
    const auto found = driver.memory.find(address);
    if (found == driver.memory.end()) return CUDA_ERROR_INVALID_VALUE;
    Context& owner = *found->second.context;
    guard.unlock();
    synchronize(driver, owner);  // work that uses it may be queued
    guard.lock();
    wire::Request request{.call = wire::Call::kFree, .context = context.slot, .address = address};
    wire::Reply reply{};
    const CUresult result = driver.connection.call(request, reply);
    if (result == CUDA_SUCCESS) driver.memory.erase(address);
    return result;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    auto it = driver.memory.upper_bound(address);
    if (it == driver.memory.begin() || address - std::prev(it)->first >= std::prev(it)->second.bytes)
        return CUDA_ERROR_NOT_FOUND;
    --it;
    if (base) *base = it->first;
    if (bytes) *bytes = it->second.bytes;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    // All of it can be reached by the device: addresses are unified.
    return allocate_host(driver, context, bytes, flags | CU_MEMHOSTALLOC_DEVICEMAP, *pointer);
}

CUresult CUDAAPI cuMemAllocHost(void** pointer, std::size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
    EMULATOR_ENTER_CONTEXT();
    const auto found = driver.host_memory.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == driver.host_memory.end()) return CUDA_ERROR_INVALID_VALUE;
    guard.unlock();
    synchronize(driver, context);
    guard.lock();
    wire::Request request{.call = wire::Call::kFreeHost, .address = found->first};
    wire::Reply reply{};
    const CUresult result = driver.connection.call(request, reply);
    ::munmap(pointer, found->second.bytes);
    driver.host_memory.erase(found);
    return result;
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* address, void* pointer, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    if (!address || flags != 0 || !is_pinned(driver, pointer, 1)) return CUDA_ERROR_INVALID_VALUE;
    *address = address_of(pointer);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned* flags, void* pointer) {
    EMULATOR_ENTER_CONTEXT();
    (void)context;
    const auto found = pinned(driver, reinterpret_cast<std::uintptr_t>(pointer));
    if (!flags || found == driver.host_memory.end()) return CUDA_ERROR_INVALID_VALUE;
    *flags = found->second.flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    EMULATOR_ENTER();
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    const bool device = within(driver.memory, address, 1);
    const auto host = pinned(driver, address);
    if (!device && host == driver.host_memory.end()) return CUDA_ERROR_INVALID_VALUE;
    Context* owner = device ? std::prev(driver.memory.upper_bound(address))->second.context : host->second.context;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *static_cast<CUcontext*>(data) = reinterpret_cast<CUcontext>(owner);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *static_cast<unsigned*>(data) = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            *static_cast<CUdeviceptr*>(data) = address;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (device) return CUDA_ERROR_INVALID_VALUE;
            *static_cast<void**>(data) = reinterpret_cast<void*>(address);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *static_cast<int*>(data) = driver.contexts.contains(owner) ? owner->gpu : 0;
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            *static_cast<unsigned*>(data) = 0;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
    return copy(to, address_of(from), bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
    return copy(address_of(to), from, bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return copy(to, from, bytes, nullptr, false);
}
CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return copy(to, from, bytes, nullptr, true);
}
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    return copy(to, address_of(from), bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(address_of(to), from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(to, from, bytes, stream, false);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(to, from, bytes, stream, false);
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr to, unsigned char value, std::size_t count) {
    return fill(to, value, 1, count, nullptr);
}
CUresult CUDAAPI cuMemsetD16(CUdeviceptr to, unsigned short value, std::size_t count) {
    return fill(to, value, 2, count, nullptr);
}
CUresult CUDAAPI cuMemsetD32(CUdeviceptr to, unsigned value, std::size_t count) {
    return fill(to, value, 4, count, nullptr);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
    return fill(to, value, 1, count, stream);
}
CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream) {
    return fill(to, value, 2, count, stream);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
    return fill(to, value, 4, count, stream);
}
