#include "operations/kernels.hpp"

#include <algorithm>
#include <cerrno>

namespace runlist::operations {
namespace {

std::uint64_t hash_of(std::string_view name) {
    std::uint64_t hash = 0xCBF2'9CE4'8422'2325;
    for (const char character : name) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100'0000'01B3;
    return hash != 0 ? hash : 1;
}

constexpr std::size_t kBegin = 46;  // letters of a long name that are kept
constexpr std::size_t kDigits = 16;
constexpr char kMark = '~';  // in no name of a function

// A name as the log has it.
void shorten(std::string_view name, std::uint64_t hash, std::array<char, 64>& to) {
    to = {};
    if (name.size() < to.size()) {
        name.copy(to.data(), name.size());
        return;
    }
    name.copy(to.data(), kBegin);
    to[kBegin] = kMark;
    for (std::size_t at = 0; at < kDigits; ++at) to[kBegin + kDigits - at] = "0123456789abcdef"[hash >> 4 * at & 15];
}

// The hash of a name, or of the one that a shortened one stands for.
std::uint64_t hash_of_given(std::string_view name) {
    if (name.size() != kBegin + 1 + kDigits || name[kBegin] != kMark) return hash_of(name);
    std::uint64_t hash = 0;
    for (const char digit : name.substr(kBegin + 1)) {
        const bool is_letter = digit >= 'a' && digit <= 'f';
        if (!is_letter && (digit < '0' || digit > '9')) return hash_of(name);
        hash = hash << 4 | static_cast<std::uint64_t>(is_letter ? digit - 'a' + 10 : digit - '0');
    }
    return hash != 0 ? hash : 1;
}

const char* name_of(const Calls& calls, CUfunction function) {
    const char* name = nullptr;
    if (calls.cuFuncGetName != nullptr && calls.cuFuncGetName(&name, function) == CUDA_SUCCESS) return name;
    if (calls.cuKernelGetName == nullptr) return nullptr;
    return calls.cuKernelGetName(&name, reinterpret_cast<CUkernel>(function)) == CUDA_SUCCESS ? name : nullptr;
}

// The sizes of the parameters. Returns how many they are; negative: that cannot be told.
template <typename Ask>
int ask_sizes(const Ask& ask, Kernel& kernel) {
    std::size_t offset = 0;
    std::size_t size = 0;
    for (int index = 0; index <= Kernel::kParameters; ++index) {
        const CUresult answer = ask(static_cast<std::size_t>(index), &offset, &size);
        if (answer == CUDA_ERROR_INVALID_VALUE) return index;
        if (answer != CUDA_SUCCESS || index == Kernel::kParameters || size > Kernel::kParameterBytes) return -1;
        kernel.sizes[static_cast<std::size_t>(index)] = static_cast<std::uint16_t>(size);
    }
    return -1;
}

int parameters_of(const Calls& calls, CUfunction function, Kernel& kernel) {
    int count = -1;
    if (calls.cuFuncGetParamInfo != nullptr) {
        count = ask_sizes([&](auto... rest) { return calls.cuFuncGetParamInfo(function, rest...); }, kernel);
    }
    if (count < 0 && calls.cuKernelGetParamInfo != nullptr) {
        const auto library = reinterpret_cast<CUkernel>(function);
        count = ask_sizes([&](auto... rest) { return calls.cuKernelGetParamInfo(library, rest...); }, kernel);
    }
    return count;
}

}  // namespace

std::uint32_t sms_of_device(const Calls& calls) {
    int sms = 0;
    CUdevice device = 0;
    if (calls.cuCtxGetDevice == nullptr || calls.cuDeviceGetAttribute == nullptr ||
        calls.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        calls.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS) {
        return 0;
    }
    return static_cast<std::uint32_t>(std::max(sms, 0));
}

Kernels::Profile& Kernels::place_of(std::uint64_t hash) {
    for (std::size_t at = hash;; ++at) {
        Profile& one = profiles_[at % profiles_.size()];
        if (one.hash == hash || one.hash == 0) return one;
    }
}

int Kernels::profile(std::string_view name, const Cost& cost) {
    const Held held(lock_);
    const std::uint64_t hash = hash_of_given(name);
    Profile& place = place_of(hash);
    if (place.hash == 0 && count_ == kProfiles) return -ENOSPC;
    if (place.hash == 0) ++count_;
    place = {.hash = hash, .cost = cost};
    known_.each([&](const void*, Kernel& kernel) {
        if (kernel.hash == hash) kernel.set(cost);
    });
    return 0;
}

void Kernels::forget() {
    const Held held(lock_);
    known_.each([&](const void* key, Kernel&) { known_.remove(key); });
}

const Kernel* Kernels::look(const Calls& calls, CUfunction function) {
    Kernel found{};
    found.parameters = parameters_of(calls, function, found);
    const char* name = name_of(calls, function);
    const std::string_view text = name != nullptr ? name : "";
    const std::uint64_t hash = hash_of(text);
    if (sms() == 0) sms_.store(sms_of_device(calls), std::memory_order_relaxed);
    const Held held(lock_);
    return known_.add(
        function,
        [&](Kernel& kernel) {
            kernel.parameters = found.parameters;
            kernel.sizes = found.sizes;
            kernel.hash = hash;
            shorten(text, hash, kernel.name);
            kernel.set(text.empty() ? Cost{} : place_of(hash).cost);
        },
        [](const Kernel&) { return false; });
}

}  // namespace runlist::operations
