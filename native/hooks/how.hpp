// What each call is where several clients share a GPU operation by operation (operations.inc), and what its arguments
// are to that.
#pragma once

#include <string_view>
#include <type_traits>

#include "hooks/launch.hpp"
#include "operations/engine.hpp"

namespace runlist::hooks {

enum class How {
    kNone,
    kKernel,
    kGraph,
    kCopy,
    kFill,
    kRecord,
    kTurn,
    kFlush,
    kFlushOthers,
    kUnload,
    kEndContext,
    kEndGreen,
    kWait,
    kAwaitStream,
    kAwaitEvent,
    kAwaitContext,
    kAskStream,
    kAskEvent,
    kElapsed,
    kMakeStream,
    kEndStream,
    kCapture,
    kEndEvent,
    kShareEvent,
    kOpenEvent,
};

struct Listed {
    std::string_view name;
    How how;
};

inline constexpr Listed kOperations[] = {
#define OPERATION(how, name) {#name, How::how},
#include "hooks/operations.inc"
#undef OPERATION
};

template <Id id>
inline constexpr How kHow = [] {
    for (const Listed& one : kOperations) {
        if (one.name == Function<id>::kName) return one.how;
    }
    return How::kNone;
}();

constexpr operations::Kind kind_of(How how) {
    switch (how) {
        case How::kKernel:
            return operations::Kind::kKernel;
        case How::kGraph:
            return operations::Kind::kGraph;
        case How::kFill:
            return operations::Kind::kFill;
        case How::kRecord:
        case How::kWait:
            return operations::Kind::kEvent;
        default:
            return operations::Kind::kCopy;
    }
}

template <typename Wanted, typename... Arguments>
constexpr bool kTakes = (std::is_same_v<Wanted, Arguments> || ...);

// The first of the arguments of that type; null for none.
template <typename Wanted, typename... Arguments>
Wanted first_of(Arguments... arguments) {
    Wanted found{};
    bool is_found = false;
    const auto look = [&](auto argument) {
        if constexpr (std::is_same_v<decltype(argument), Wanted>) {
            if (!is_found) found = argument;
            is_found = true;
        }
    };
    (look(arguments), ...);
    return found;
}

// Whether a stream captures; false where none does.
bool is_captured_now(int row, CUstream stream);

// A call with a stream in place of the one that it names.
template <typename... Arguments>
CUresult call_on(CUstream stream, CUresult (*real)(Arguments...), Arguments... arguments) {
    CUlaunchConfig config{};
    const auto on = [&](auto argument) {
        if constexpr (std::is_same_v<decltype(argument), CUstream>) {
            return stream;
        } else if constexpr (std::is_same_v<decltype(argument), const CUlaunchConfig*>) {
            if (argument == nullptr || argument->hStream == stream) return argument;
            config = *argument;
            config.hStream = stream;
            return static_cast<const CUlaunchConfig*>(&config);
        } else {
            return argument;
        }
    };
    return real(on(arguments)...);
}

}  // namespace runlist::hooks
