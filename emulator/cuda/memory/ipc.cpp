// Device memory of other processes: by handles of 64 bytes, and by descriptors. Both carry a ticket.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/memory/allocation.hpp"
#include "cuda/memory/virtual.hpp"

namespace emulator::cuda {
namespace {

// What another process needs to have the memory. The key cannot be guessed.
struct Ticket {
    std::uint64_t magic;
    wire::Key key;
    std::uint64_t offset;  // of the allocation in its memory
    std::uint64_t bytes;   // of the allocation
    std::uint32_t client;  // whose it is
    std::uint32_t reserved;
};
constexpr std::uint64_t kMagic = 0x314D454D4C4E5252;  // "RRNLMEM1"
static_assert(sizeof(Ticket) <= sizeof(CUipcMemHandle));

CUresult make_ticket(Driver& driver, const DeviceMemory& memory, Ticket& ticket) {
    wire::Request request{.call = wire::Call::kExport};
    request.memory = {.offset = 0, .handle = memory.handle};
    wire::Reply reply{};
    const CUresult result = driver.connection.call(request, reply);
    ticket = {.magic = kMagic, .key = reply.key, .offset = 0, .bytes = memory.bytes, .client = driver.rm.handle()};
    return result;
}

// An object of the same memory, which is not charged again.
CUresult use_ticket(Driver& driver, const Ticket& ticket, DeviceMemory& memory) {
    if (ticket.magic != kMagic) return CUDA_ERROR_INVALID_VALUE;
    const std::uint32_t handle = driver.rm.choose_handle();
    wire::Request request{.call = wire::Call::kImport};
    request.import = {.key = ticket.key, .handle = handle};
    wire::Reply reply{};
    const CUresult result = driver.connection.call(request, reply);
    if (result == CUDA_SUCCESS)
        memory = {handle, reply.gpu, reply.bytes};
    else
        driver.rm.return_handle(handle);
    return result;
}

}  // namespace
}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
    EMULATOR_ENTER_CONTEXT();
    std::uint64_t start = 0;
    const Allocation* allocation = find_allocation(address, start);
    if (!handle || !allocation) return CUDA_ERROR_INVALID_VALUE;
    if (allocation->kind != Allocation::Kind::kOwn && allocation->kind != Allocation::Kind::kCut)
        return CUDA_ERROR_INVALID_VALUE;
    const Block& block = block_of(*allocation, start);
    Ticket ticket;
    EMULATOR_TRY(make_ticket(driver, block.memory, ticket));
    ticket.offset = start - block.address;
    ticket.bytes = allocation->bytes;
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
    EMULATOR_ENTER_CONTEXT();
    if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    Ticket ticket;
    std::memcpy(&ticket, &handle, sizeof ticket);
    if (ticket.client == driver.rm.handle()) return CUDA_ERROR_INVALID_CONTEXT;  // its own
    Block block;
    EMULATOR_TRY(use_ticket(driver, ticket, block.memory));
    const bool fits = ticket.offset <= block.memory.bytes && ticket.bytes <= block.memory.bytes - ticket.offset;
    CUresult result = fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (fits && block.memory.gpu != context.gpu) result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS) result = map_block(driver, block);
    if (result != CUDA_SUCCESS) {
        driver.rm.give(block.memory);
        return result;
    }
    *address = block.address + ticket.offset;
    allocations().emplace(*address, Allocation{ticket.bytes, &context, Allocation::Kind::kImported, block});
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address) {
    EMULATOR_ENTER_CONTEXT();
    const auto found = allocations().find(address);
    if (found == allocations().end() || found->second.kind != Allocation::Kind::kImported)
        return CUDA_ERROR_INVALID_VALUE;
    wait_for_all(driver, context, guard);
    free_allocation(driver, address);
    return CUDA_SUCCESS;
}

// The memory is there for others as long as this process or one that has imported it holds it: the descriptor alone
// does not hold it.
CUresult CUDAAPI cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags) {
    EMULATOR_ENTER();
    const Physical* physical = find_physical(handle);
    if (!out || !physical || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    if (!(physical->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_INVALID_VALUE;
    Ticket ticket;
    EMULATOR_TRY(make_ticket(driver, physical->memory, ticket));
    UniqueFd fd(::memfd_create("emulated-gpu-handle", MFD_CLOEXEC));
    if (!fd || ::write(fd.get(), &ticket, sizeof ticket) != sizeof ticket) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(out) = fd.release();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shared,
                                                CUmemAllocationHandleType type) {
    EMULATOR_ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    const auto fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shared));
    Ticket ticket;
    if (::pread(fd, &ticket, sizeof ticket, 0) != sizeof ticket) return CUDA_ERROR_INVALID_VALUE;
    DeviceMemory memory;
    EMULATOR_TRY(use_ticket(driver, ticket, memory));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = static_cast<int>(memory.gpu)};
    *handle = adopt_physical(memory, properties);
    return CUDA_SUCCESS;
}
