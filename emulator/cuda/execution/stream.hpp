// Streams: found, and given work. The driver's lock is held.
#pragma once

#include <mutex>

#include "cuda/execution/objects.hpp"

namespace emulator::cuda {

CUresult make_stream(Driver& driver, Context& context, int priority, unsigned flags, Stream*& made);
CUresult destroy_stream(Driver& driver, Stream& stream);
// The same, but that its handle goes on to name one that nothing can be done with.
CUresult detach_stream(Driver& driver, Stream& stream);
// The stream that a handle names in the current context; nullptr when it names none.
Stream* find_stream(Driver& driver, CUstream handle);

// Goes before new work in a stream that does not capture: the reasons to refuse it, and the waits that CUDA puts
// between the default stream and the others.
CUresult begin_work(Driver& driver, Stream& stream);
// Queues a task, in order with the default stream. A capturing stream captures it.
CUresult submit(Driver& driver, Stream& stream, Task task);
// The same of a single operation.
CUresult submit(Driver& driver, Stream& stream, const wire::Request& request);
// The stream that a handle names, once a task fits in it: it is kept no longer than a real channel's ring. Waits
// without the lock.
CUresult wait_for_room(Driver& driver, CUstream handle, std::unique_lock<std::mutex>& guard, Stream*& stream);

}  // namespace emulator::cuda
