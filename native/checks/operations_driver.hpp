// A driver that is made here for clients of operations, and what it was given by them: streams are numbers, events end
// when it is said so.
#pragma once

#include <pthread.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "checks/check.hpp"
#include "operations/engine.hpp"

namespace runlist::checks {

using namespace runlist::operations;

inline constexpr int kShared = 5;  // of several clients
inline constexpr int kStreams = kShared + 1;

struct Given {
    std::mutex mutex;
    std::vector<std::uint64_t> numbers;
};

inline Given given[kStreams];
inline std::atomic<bool> first_busy{false};
inline std::atomic<bool> in_flight{
    false};  // what others than client 0 gave, but for the next `landing` that are asked about
inline std::atomic<int> landing{0};

// Handles of the driver that is made here: never looked into.
inline CUstream stream_at(int index) {
    return reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(0x1000 + 0x100 * index));
}
inline const auto kContext = reinterpret_cast<CUcontext>(std::uintptr_t{0x77000});

inline CUresult get_current(CUcontext* context) {
    *context = kContext;
    return CUDA_SUCCESS;
}
inline CUresult set_current(CUcontext) { return CUDA_SUCCESS; }
inline CUresult make_stream(CUstream*, unsigned, int) { return CUDA_ERROR_NOT_SUPPORTED; }
inline CUresult query(CUstream stream) {
    if (stream == stream_at(0)) return first_busy.load() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    return in_flight.load() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
inline CUresult synchronize_stream(CUstream) { return CUDA_SUCCESS; }
inline CUresult wait_event(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }
inline CUresult make_event(CUevent* event, unsigned) {
    static std::atomic<std::uintptr_t> next{0x99000};
    *event = reinterpret_cast<CUevent>(next.fetch_add(0x10));
    return CUDA_SUCCESS;
}
inline CUresult record_event(CUevent, CUstream) { return CUDA_SUCCESS; }
inline CUresult query_event(CUevent) {
    if (in_flight.load()) return landing.load() != 0 && landing.fetch_sub(1) > 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    static std::atomic<unsigned> asked{0};
    return asked.fetch_add(1) % 3 == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
inline CUresult pointer(void*, CUpointer_attribute, CUdeviceptr) { return CUDA_SUCCESS; }

inline constexpr Calls kCalls{.cuCtxGetCurrent = get_current,
                              .cuCtxSetCurrent = set_current,
                              .cuStreamCreateWithPriority = make_stream,
                              .cuStreamQuery = query,
                              .cuStreamSynchronize = synchronize_stream,
                              .cuStreamWaitEvent = wait_event,
                              .cuEventCreate = make_event,
                              .cuEventRecord = record_event,
                              .cuEventQuery = query_event,
                              .cuPointerGetAttribute = pointer};

inline region::Slot told_slot;
inline region::Operations told;

struct Piece {
    int stream;
    std::uint64_t number;
};

inline CUresult take(const Piece& piece) {
    Given& there = given[piece.stream];
    const std::lock_guard lock(there.mutex);
    there.numbers.push_back(piece.number);
    return CUDA_SUCCESS;
}

inline CUresult run_piece(const Record& record) { return take(*static_cast<const Piece*>(record.rest())); }

inline void launch(Client& client, const Piece& piece, Kind kind) {
    const Call made;
    Doing doing(made, client, kCalls, kind, stream_at(piece.stream), false, nullptr);
    if (!doing.goes_now()) {
        if (Record* record = doing.reserve(sizeof(Piece) + piece.number % 500, nullptr)) {
            std::memcpy(record->rest(), &piece, sizeof(piece));
            record->run = run_piece;
            doing.commit();
            return;
        }
        doing.wait_for_turn();
    }
    doing.begin();
    doing.end(take(piece));
}

}  // namespace runlist::checks

namespace runlist::operations {

constinit const Surroundings surroundings{
    .hooking = [] { return true; },
    .any_capture = [] { return false; },
    .join = [] {},
    .find = [](const char*) { return reinterpret_cast<void*>(&::pthread_create); },
    .told_in = [] { return Telling{.known = true, .slot = &checks::told_slot, .operations = &checks::told}; }};

}  // namespace runlist::operations
