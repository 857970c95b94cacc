/*
 * What a program says of itself to the Runlist daemon that manages it. All of it is optional.
 *
 * Every function returns 0 (rl_segment_in_force: 0 or 1), or the negative of an errno value:
 *
 *   -ENOTCONN   no daemon hears this process; one is looked for again at most each second
 *   -EAGAIN     the daemon's queue is full, and the message was dropped
 *   -EDEADLK    called by a signal handler that interrupted one of these functions in the same thread; nothing was done
 *   -EBUSY      another thread has been inside one of these functions for too long; nothing was done
 *   -EINVAL     see the function
 *   -ENOSPC     see the function
 *
 * They may be called from any thread, from signal handlers, and after fork; a child of fork starts outside of segments.
 * They leave errno and signals alone, allocate nothing, start no thread, and keep one descriptor (close-on-exec). They
 * wait only where it says so. Without a daemon they cost less than a microsecond.
 *
 * The daemon is found by the environment variable RUNLIST_MESSAGES, which `runlist run` sets, or where daemons usually
 * are. A program that runs with more rights than its caller (setuid) does not trust the environment.
 */
#ifndef RUNLIST_H
#define RUNLIST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RL_API __attribute__((visibility("default")))
#else
#define RL_API
#endif

/*
 * Begin a segment: until it is ended, this thread's work has this priority; higher is more urgent.
 *
 * In a segment within a segment the inner priority holds, then the outer one again. The process has the highest
 * priority that any of its threads has. Waits for the daemon's answer, 60 ms at most; rl_segment_in_force says what it
 * was.
 *
 * With -ENOTCONN and -EAGAIN the segment has begun all the same: the daemon is told with the next message that it can
 * be told anything. With -ENOSPC, -EDEADLK and -EBUSY it has not, and must not be ended; -ENOSPC: 64 segments are open
 * in this process.
 */
RL_API int rl_segment_begin(int priority);

/*
 * End the innermost segment of this thread. Waits at most 10 ms, and only while the daemon's queue is full.
 *
 * With -ENOTCONN and -EAGAIN the segment has ended all the same. -EINVAL: this thread has no open segment.
 */
RL_API int rl_segment_end(void);

/*
 * Whether the innermost segment of this thread is in force by the daemon's newest answer: 1 where this process has its
 * priority, or a higher one, and the others are off for it; else 0. It waits for nothing.
 *
 * 0 without a daemon, where it does not manage this process (yet), for a batch task, after a more urgent segment of
 * another, once segments have had the time that they may have, and with a daemon before 0.5, which does not say.
 * -EINVAL: this thread has no open segment.
 */
RL_API int rl_segment_in_force(void);

/* Say how long a request took, in nanoseconds. It counts for the target of `--p99`. */
RL_API int rl_report_latency_ns(uint64_t nanoseconds);

/* Say that this process will want the GPU in so many nanoseconds; 0 is now. */
RL_API int rl_hint_ns(uint64_t nanoseconds);

/*
 * A request begins that will need the GPU, or ends: around what a program does for one, from when its data came in
 * until its answer is there. The GPU is taken for it before it is needed.
 *
 * Requests may overlap, in one thread and in several; a request within a request is the same one. Where the preloaded
 * library is told that nobody waits to hear of it they cost some nanoseconds. A request that is never ended counts
 * until the program was idle for a while. A child of fork starts outside of requests. -EINVAL, where the library is
 * preloaded: no request is open; elsewhere nobody counts them.
 */
RL_API int rl_request_begin(void);
RL_API int rl_request_end(void);

#ifdef __cplusplus
}
#endif

#endif
