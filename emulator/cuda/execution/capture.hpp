// Stream capture: what streams are given to do is kept, in its order, instead of being done. The driver's lock is held.
#pragma once

#include "cuda/execution/objects.hpp"

namespace emulator::cuda {

// May the calling thread make a call that could get in the way of a capture, such as allocating memory? If not, the
// capture has failed.
CUresult allow_unsafe_call();
// May a stream be waited for or asked about? If not, the capture has failed.
CUresult allow_query(const Stream& stream);
// May work be queued in a stream that does not capture? Not in the default stream while a blocking one captures.
CUresult allow_work(const Stream& stream);
// The same for waiting for a context.
CUresult allow_synchronize(const Context& context);

// Keeps a task behind what the capturing stream has captured so far.
CUresult capture_task(Stream& stream, Task task);
// Makes a stream wait for an event that was recorded in a capture.
CUresult capture_wait(Stream& stream, const Event& event);

// Is all that the capture's other streams did something that its origin waits for?
bool is_joined(const Capture& capture);
// Ends a capture: its streams and the events recorded in it are no part of it any more.
void end_capture(Capture& capture);
// Takes a stream out of its capture, which fails if it still goes on.
void leave_capture(Stream& stream);

}  // namespace emulator::cuda
