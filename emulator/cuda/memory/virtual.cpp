#include "cuda/memory/virtual.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

namespace emulator::cuda {
namespace {

struct Mapping {
    std::uint64_t bytes;
    Physical* physical;
    CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
};

struct Virtual {
    std::set<Physical*> physical;
    std::map<std::uint64_t, std::uint64_t> reservations;  // address -> bytes
    std::map<std::uint64_t, Mapping> mappings;            // by address
};

Virtual& known() { return kept<Virtual>(); }

bool is_whole(std::uint64_t value) { return value % wire::kPageBytes == 0; }

void free_if_unused(Driver& driver, Physical* physical) {
    if (physical->handles > 0 || physical->mappings > 0) return;
    driver.rm.give(physical->memory);
    known().physical.erase(physical);
    delete physical;
}

// The mappings that fill exactly [address, address + bytes); none when they do not.
std::vector<std::uint64_t> mappings_in(std::uint64_t address, std::uint64_t bytes) {
    std::vector<std::uint64_t> found;
    std::uint64_t end = address;
    for (auto it = known().mappings.find(address); it != known().mappings.end() && it->first == end; ++it) {
        if (it->first - address >= bytes) break;
        found.push_back(it->first);
        end += it->second.bytes;
    }
    return end - address == bytes ? found : std::vector<std::uint64_t>{};
}

// Puts the memory behind the addresses, or takes it away, as the access asks. Reading alone is not told from writing.
CUresult set_access(Driver& driver, std::uint64_t address, Mapping& mapping, CUmemAccess_flags access) {
    const bool had = mapping.access != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    const bool has = access != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUresult result = CUDA_SUCCESS;
    if (has && !had) result = map_memory(driver, address, mapping.physical->memory, mapping.bytes);
    if (had && !has) result = unmap_memory(driver, address, mapping.bytes);
    if (result == CUDA_SUCCESS) mapping.access = access;
    return result;
}

CUresult check_properties(const Driver& driver, const CUmemAllocationProp& wanted) {
    if (wanted.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (wanted.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (!driver.has(wanted.location.id)) return CUDA_ERROR_INVALID_DEVICE;
    const auto types = static_cast<unsigned>(wanted.requestedHandleTypes);
    return (types & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

Physical* find_physical(CUmemGenericAllocationHandle handle) {
    Physical* physical = named(known().physical, reinterpret_cast<const void*>(handle));
    return physical && physical->handles > 0 ? physical : nullptr;
}

CUmemGenericAllocationHandle adopt_physical(const DeviceMemory& memory, const CUmemAllocationProp& properties) {
    auto* physical = new Physical{memory, properties};
    known().physical.insert(physical);
    return reinterpret_cast<CUmemGenericAllocationHandle>(physical);
}

bool is_mapped(std::uint64_t address, std::uint64_t bytes) {
    auto it = known().mappings.upper_bound(address);
    if (it == known().mappings.begin()) return false;
    --it;
    std::uint64_t end = it->first;
    for (; it != known().mappings.end() && it->first == end; ++it) {
        if (it->second.access == CU_MEM_ACCESS_FLAGS_PROT_NONE) return false;
        end += it->second.bytes;
        if (end > address && bytes <= end - address) return true;
    }
    return false;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* wanted,
                                               CUmemAllocationGranularity_flags option) {
    EMULATOR_ENTER();
    if (!granularity || !wanted) return CUDA_ERROR_INVALID_VALUE;
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    EMULATOR_TRY(check_properties(driver, *wanted));
    *granularity = wire::kPageBytes;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* wanted,
                             unsigned long long flags) {
    EMULATOR_ENTER();
    if (!handle || !wanted || flags != 0 || bytes == 0 || !is_whole(bytes)) return CUDA_ERROR_INVALID_VALUE;
    EMULATOR_TRY(check_properties(driver, *wanted));
    DeviceMemory memory;
    const CUresult result = take_memory(driver, static_cast<std::uint32_t>(wanted->location.id), bytes, memory);
    if (result == CUDA_SUCCESS) *handle = adopt_physical(memory, *wanted);
    return result;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    EMULATOR_ENTER();
    Physical* physical = find_physical(handle);
    if (!physical) return CUDA_ERROR_INVALID_VALUE;
    --physical->handles;
    free_if_unused(driver, physical);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr wanted,
                                     unsigned long long flags) {
    EMULATOR_ENTER();
    const bool power_of_two = (alignment & (alignment - 1)) == 0;  // 0: any
    if (!address || flags != 0 || bytes == 0 || !is_whole(bytes) || !power_of_two) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t hint = is_whole(wanted) && (alignment == 0 || wanted % alignment == 0) ? wanted : 0;
    const std::uint64_t made = reserve_addresses(driver, bytes, std::max(alignment, std::size_t{1}), hint);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    known().reservations.emplace(made, bytes);
    *address = made;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
    EMULATOR_ENTER();
    const auto found = known().reservations.find(address);
    if (found == known().reservations.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
    const auto mapped = known().mappings.lower_bound(address);
    if (mapped != known().mappings.end() && mapped->first - address < bytes) return CUDA_ERROR_INVALID_VALUE;
    release_addresses(driver, address, bytes);
    known().reservations.erase(found);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
    EMULATOR_ENTER();
    Physical* physical = find_physical(handle);
    // CUDA itself takes no offset but 0 yet.
    if (!physical || offset != 0 || flags != 0 || bytes == 0 || !is_whole(address) || !is_whole(bytes) ||
        bytes > physical->memory.bytes)
        return CUDA_ERROR_INVALID_VALUE;
    const auto after = known().reservations.upper_bound(address);
    if (after == known().reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
    const auto& [start, reserved] = *std::prev(after);
    if (address - start > reserved || bytes > reserved - (address - start)) return CUDA_ERROR_INVALID_VALUE;
    auto& mappings = known().mappings;
    const auto next = mappings.lower_bound(address);
    if (next != mappings.end() && next->first - address < bytes) return CUDA_ERROR_INVALID_VALUE;
    if (next != mappings.begin() && address - std::prev(next)->first < std::prev(next)->second.bytes)
        return CUDA_ERROR_INVALID_VALUE;
    mappings.emplace(address, Mapping{bytes, physical});
    ++physical->mappings;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
    EMULATOR_ENTER();
    const auto found = mappings_in(address, bytes);
    if (found.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (const std::uint64_t start : found) {
        Mapping& mapping = known().mappings.at(start);
        EMULATOR_TRY(set_access(driver, start, mapping, CU_MEM_ACCESS_FLAGS_PROT_NONE));
        Physical* physical = mapping.physical;
        known().mappings.erase(start);
        --physical->mappings;
        free_if_unused(driver, physical);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* wanted,
                                std::size_t count) {
    EMULATOR_ENTER();
    const auto found = mappings_in(address, bytes);
    if (found.empty() || !wanted || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
        const CUmemAccess_flags access = wanted[i].flags;
        if (wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
        if (access != CU_MEM_ACCESS_FLAGS_PROT_NONE && access != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        // No GPU reaches another's memory.
        for (const std::uint64_t start : found)
            if (known().mappings.at(start).physical->properties.location.id != wanted[i].location.id)
                return CUDA_ERROR_INVALID_DEVICE;
    }
    for (std::size_t i = 0; i < count; ++i)
        for (const std::uint64_t start : found)
            EMULATOR_TRY(set_access(driver, start, known().mappings.at(start), wanted[i].flags));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* pointer) {
    EMULATOR_ENTER();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t address = address_of(pointer);
    std::uint64_t start = 0;
    const Mapping* mapping = find_part(known().mappings, address, start);
    if (!mapping) return CUDA_ERROR_INVALID_VALUE;
    ++mapping->physical->handles;
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(mapping->physical);
    return CUDA_SUCCESS;
}
