// Calls that wait in a client's queue: what they were made with, kept until the engine's thread makes them.
#pragma once

#include <memory>
#include <tuple>

#include "hooks/how.hpp"

namespace runlist::hooks {

inline operations::Shape shape_of(const CUlaunchConfig* config) {
    if (config == nullptr) return {};
    return {.blocks = std::uint64_t{config->gridDimX} * config->gridDimY * config->gridDimZ,
            .threads = config->blockDimX * config->blockDimY * config->blockDimZ,
            .shared = config->sharedMemBytes};
}

// Of a kernel's launch: its grid, its blocks and their shared memory are its first numbers.
template <typename... Arguments>
operations::Shape shape_of_launch(Arguments... arguments) {
    if constexpr (kTakes<const CUlaunchConfig*, Arguments...>) {
        return shape_of(first_of<const CUlaunchConfig*>(arguments...));
    } else {
        unsigned numbers[7]{};
        int count = 0;
        const auto look = [&](auto argument) {
            if constexpr (std::is_same_v<decltype(argument), unsigned>) {
                if (count < 7) numbers[count++] = argument;
            }
        };
        (look(arguments), ...);
        return {.blocks = std::uint64_t{numbers[0]} * numbers[1] * numbers[2],
                .threads = numbers[3] * numbers[4] * numbers[5],
                .shared = numbers[6]};
    }
}

template <typename... Arguments>
CUresult run_plain(const operations::Record& record) {
    const auto& packed = *static_cast<const std::tuple<Arguments...>*>(record.rest());
    return std::apply(reinterpret_cast<CUresult (*)(Arguments...)>(record.real), packed);
}

// A kernel's parameters where the caller's may be gone: what it was launched with, packed behind its arguments.
struct Parameters {
    int count = -1;
    std::uint16_t sizes[operations::Kernel::kParameters];
    std::size_t extra_bytes = 0;  // of one buffer, instead
    const void* extra = nullptr;
    bool buffered = false;
    const CUlaunchConfig* config = nullptr;

    // False where they cannot be copied.
    bool look(const operations::Calls& calls, CUfunction function, void** values, void** buffer);
    bool look(const CUlaunchConfig* launch);
    std::size_t bytes() const;
    void pack(std::byte* to, CUstream stream, void** values) const;
};

// How they lie: this, the attributes, then the values, each on its own 16 bytes.
struct Packed {
    int count;
    bool buffered;
    std::size_t extra_bytes;
    CUlaunchConfig config;
};

// Where packed parameters lie, as the driver takes them.
struct Unpacked {
    explicit Unpacked(const std::byte* from);
    void* values[operations::Kernel::kParameters + 1];
    void* extra[5];
    std::size_t extra_bytes;
    CUlaunchConfig config;
    bool buffered;
};

constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

template <typename... Arguments>
CUresult run_kernel(const operations::Record& record) {
    const auto& packed = *static_cast<const std::tuple<Arguments...>*>(record.rest());
    Unpacked there(static_cast<const std::byte*>(record.rest()) + rounded(sizeof(packed)));
    int pointers = 0;
    const auto replaced = [&](auto argument) {
        if constexpr (std::is_same_v<decltype(argument), void**>) {
            const bool extra = pointers++ != 0;
            if (extra) return there.buffered ? there.extra : nullptr;
            return there.buffered ? nullptr : static_cast<void**>(there.values);
        } else if constexpr (std::is_same_v<decltype(argument), const CUlaunchConfig*>) {
            return static_cast<const CUlaunchConfig*>(&there.config);
        } else {
            return argument;
        }
    };
    const auto call = [&](const Arguments&... arguments) {
        std::tuple<Arguments...> given{replaced(arguments)...};  // in order
        return std::apply(reinterpret_cast<CUresult (*)(Arguments...)>(record.real), given);
    };
    return std::apply(call, packed);
}

// Whether what an operation reads and writes may be left to the driver when the call has returned.
template <typename... Arguments>
bool is_all_pinned(const operations::Calls& calls, Arguments... arguments) {
    const auto pinned = [&](auto argument) {
        using Type = decltype(argument);
        if constexpr (std::is_same_v<Type, CUdeviceptr>) {
            return operations::is_pinned(calls, reinterpret_cast<const void*>(argument));
        } else if constexpr (std::is_same_v<Type, void*> || std::is_same_v<Type, const void*>) {
            return operations::is_pinned(calls, argument);
        } else {
            return true;
        }
    };
    return (pinned(arguments) && ...);
}

// Queues it; false where that cannot be.
template <How how, typename... Arguments>
[[gnu::noinline]] bool queue(operations::Doing& doing, const operations::Calls& calls, CUstream stream,
                             CUresult (*real)(Arguments...), Arguments... arguments) {
    using Tuple = std::tuple<Arguments...>;
    Parameters parameters;
    std::size_t bytes = sizeof(Tuple);
    if constexpr (how == How::kCopy) {
        if (!is_all_pinned(calls, arguments...)) return false;
    }
    if constexpr (how == How::kKernel) {
        const operations::Shape shape = shape_of_launch(arguments...);
        constexpr unsigned kMostThreads = 1024;
        if (shape.blocks == 0 || shape.threads == 0 || shape.threads > kMostThreads) return false;  // is refused
        void** given[2]{};
        int pointers = 0;
        const auto look = [&](auto argument) {
            if constexpr (std::is_same_v<decltype(argument), void**>) given[pointers++] = argument;
        };
        (look(arguments), ...);
        if (!parameters.look(calls, first_of<CUfunction>(arguments...), given[0], given[1])) return false;
        if (kTakes<const CUlaunchConfig*, Arguments...> &&
            !parameters.look(first_of<const CUlaunchConfig*>(arguments...))) {
            return false;
        }
        bytes = rounded(sizeof(Tuple)) + parameters.bytes();
    }
    operations::Record* record = doing.reserve(bytes, how == How::kRecord ? first_of<CUevent>(arguments...) : nullptr);
    if (record == nullptr) return false;
    const auto on = [&](auto argument) {
        if constexpr (std::is_same_v<decltype(argument), CUstream>)
            return stream;
        else
            return argument;
    };
    std::construct_at(static_cast<Tuple*>(record->rest()), on(arguments)...);
    record->real = reinterpret_cast<void*>(real);
    if constexpr (how == How::kKernel) {
        void** values = first_of<void**>(arguments...);
        parameters.pack(static_cast<std::byte*>(record->rest()) + rounded(sizeof(Tuple)), stream, values);
        record->run = run_kernel<Arguments...>;
    } else {
        record->run = run_plain<Arguments...>;
    }
    doing.commit();
    return true;
}

}  // namespace runlist::hooks
