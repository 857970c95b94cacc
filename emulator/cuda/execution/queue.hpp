// Operations on their way to the device, and waiting for them.
#pragma once

#include <mutex>
#include <vector>

#include "cuda/execution/objects.hpp"

namespace emulator::cuda {

// Queues one operation behind the stream's last, whatever other streams do. The driver's lock is held here and below.
CUresult append(Driver& driver, Stream& stream, wire::Request request);
// The same of a shared event, recorded or waited for: the device has it when this returns.
CUresult append_shared(Driver& driver, Stream& stream, wire::Call call, const Event& event);
// The same for a host function, or a callback.
CUresult append_host(Driver& driver, Stream& stream, const CUDA_HOST_NODE_PARAMS& host,
                     StatusFunction callback = nullptr);
// Waits, without the lock, until the context's host functions were called.
void finish_host_calls(const Context& context, std::unique_lock<std::mutex>& guard);
// Makes what comes next in the stream wait for an operation of another.
CUresult append_wait(Driver& driver, Stream& stream, Point point);

// Records an event in a stream, or has it wait for one.
CUresult record_event(Driver& driver, Stream& stream, Event& event);
CUresult await_event(Driver& driver, Stream& stream, const Event& event);

bool is_done(const Driver& driver, Point point);
// Waits, without the lock, until the stream is past the point; returns the context's error, if it has one.
CUresult wait_for(Driver& driver, const Context& context, Point point, std::unique_lock<std::mutex>& guard);
// The streams of a context; of a primary one those of its green contexts as well.
std::vector<Stream*> streams_of(const Context& context);
// Waits for everything in the context.
CUresult wait_for_all(Driver& driver, const Context& context, std::unique_lock<std::mutex>& guard);

// What CUDA's synchronisations and queries have in common.
CUresult synchronize(Driver& driver, const Context& context, Point point, std::unique_lock<std::mutex>& guard);
CUresult query(Driver& driver, const Context& context, Point point);

}  // namespace emulator::cuda
