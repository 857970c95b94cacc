// The functions of the lists (cuda.inc, nvml.inc): their types, where the real ones are (in a row for each copy of the
// driver's libraries in the process, see resolve/copies.hpp), and which hook stands for which real one.
#pragma once

#include <cuda.h>
#include <nvml.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "resolve/copies.hpp"

namespace runlist::hooks {

using resolve::kLinked;
using resolve::kRows;
using resolve::Library;

enum class Id : std::uint16_t {
#define HOOK(behaviour, name) name,
#define CALL(name) name,
#include "hooks/cuda.inc"
    kCudaEnd,
    kNvmlBegin = kCudaEnd - 1,
#include "hooks/nvml.inc"
    kCount,
#undef HOOK
#undef CALL
};

inline constexpr int kCount = static_cast<int>(Id::kCount);

// Its type, as the header declares it, and its name.
template <Id id>
struct Function;

#define HOOK(behaviour, symbol)                            \
    template <>                                            \
    struct Function<Id::symbol> {                          \
        using Type = decltype(::symbol);                   \
        static constexpr std::string_view kName = #symbol; \
    };
#define CALL(symbol) HOOK(, symbol)
#include "hooks/cuda.inc"
#include "hooks/nvml.inc"
#undef HOOK
#undef CALL

constexpr Library library_of(Id id) { return id < Id::kCudaEnd ? Library::kCuda : Library::kNvml; }

using Real = std::atomic<void*>;
extern constinit Real real_functions[kRows][kCount];

// Looks for the real function of a program that was linked with the library.
void* find_linked(Id id);

// Whether the lists have a function of that name.
bool is_listed(std::string_view name);

extern const std::string_view names[kCount];

// Our hook of a real function; nullptr for none.
void* hook_of(const void* function);
void set_hook_of(const void* function, void* hook);  // one at a time

// The real function; nullptr if the library lacks it.
template <Id id>
typename Function<id>::Type* real(int row) {
    void* found = real_functions[row][static_cast<int>(id)].load(std::memory_order_acquire);
    if (found == nullptr && row == kLinked) [[unlikely]]
        found = find_linked(id);
    return reinterpret_cast<typename Function<id>::Type*>(found);
}

// What a function that is not there answers.
template <typename Result>
constexpr Result absent();

template <>
constexpr CUresult absent() {
    return CUDA_ERROR_NOT_FOUND;
}

template <>
constexpr nvmlReturn_t absent() {
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

// Calls the real function.
template <Id id, typename... Arguments>
auto call_real(int row, Arguments... arguments) {
    auto* function = real<id>(row);
    if (function == nullptr) [[unlikely]]
        return absent<decltype(function(arguments...))>();
    return function(arguments...);
}

template <Id id, int row, typename... Arguments>
auto call_real(Arguments... arguments) {
    return call_real<id>(row, arguments...);
}

}  // namespace runlist::hooks
