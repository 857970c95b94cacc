/*
 * Operations of several clients on one GPU at the same time: one client that goes first (client 0), and others whose
 * operations go beside it by a rule. docs/operations.md says what for.
 *
 * Clients are threads of this process, or whole processes under MPS that map one page (RUNLIST_OPERATIONS). All of it
 * needs the library to be preloaded, by `runlist run` or with RUNLIST_OPERATIONS set; without, every function but
 * rl_operations_start, which says -ENOSYS, says -ENOENT.
 *
 * Client 0 gives its operations to the driver at once. Those of the others go at once while it is idle, or where the
 * rule admits them beside it; else they are queued, in order, and given to the driver by a thread of the library as
 * soon as the rule admits them. What cannot be queued waits until the client's queue is empty, and is then called
 * directly.
 */
#ifndef RUNLIST_OPERATIONS_H
#define RUNLIST_OPERATIONS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef RL_API
#if defined(__GNUC__)
#define RL_API __attribute__((visibility("default")))
#else
#define RL_API
#endif
#endif

enum rl_operation_class { RL_UNKNOWN = 0, RL_COMPUTE = 1, RL_MEMORY = 2 };

enum rl_operation_kind { RL_KERNEL = 0, RL_GRAPH = 1, RL_COPY = 2, RL_FILL = 3, RL_EVENT = 4 };

/*
 * What may run beside client 0 while it is busy, and how far ahead of it the others may be while it is not: what is in
 * flight when client 0 comes is what it waits for.
 */
struct rl_admission {
    uint32_t size;   /* of this structure */
    uint32_t beside; /* bit 3 * (class of client 0's newest operation) + (class of the other): may run beside it */
    uint32_t sms;    /* most SMs of the others' operations in flight beside it, the new one included */
    uint32_t copies; /* whether the others' copies and fills go at once */
    int64_t gate_ns; /* most of the summed expected durations of those in flight, the new one included; negative: any */
    int64_t ahead_ns; /* while client 0 is idle, another one goes where those in flight may be expected to last this
                         long together, or its client has one at most; a kernel without a profile counts as its client's
                         others took, at first as a sixteenth of it; a graph as all of it; 0: any */
    int64_t rest_ns;  /* client 0 counts as busy for this long after all that it gave has ended; at most 1 s */
};

/* Of one client, since the start. */
struct rl_operations_counters {
    uint64_t launched;   /* operations given to the driver, at once or later */
    uint64_t deferred;   /* of those, that waited in the queue */
    uint64_t flushed;    /* calls that waited for the queue to empty: synchronisations, frees, ... */
    uint64_t opened;     /* times that a bound was reached and the client went on without the rule */
    uint64_t waited_ns;  /* sum over deferred operations, from the call to the driver */
    uint64_t requests;   /* synchronisations that ended a stretch of work */
    uint64_t latency_ns; /* the newest such stretch: from its first operation to the end of the synchronisation */
};

/*
 * One operation. Times are of CLOCK_MONOTONIC; done_ns is when it was done by the GPU's own clock, or where that cannot
 * be had when the library saw it; 0: not known.
 */
struct rl_operation {
    uint64_t called_ns, launched_ns, done_ns;
    uint32_t client;
    uint32_t kind;            /* rl_operation_kind */
    uint32_t operation_class; /* rl_operation_class */
    uint32_t sms;             /* of its profile; of a kernel without, as many as its blocks fill */
    uint64_t lost;            /* operations that were overwritten before this one */
    char name[64]; /* of a kernel; of a longer one 46 letters, `~` and 16 digits, which rl_operations_profile takes, too
                    */
};

/*
 * Start, for so many clients of this process, 1 to 16; client 0 goes first. -EINVAL; -EALREADY; -ENOSYS: the library's
 * hooks are not in force (run the program with `runlist run`).
 */
RL_API int rl_operations_start(int clients);

/*
 * This thread is that client from now on; -1: none. What a thread of no client gives to a stream that a client made is
 * that client's. -EINVAL; -ENOENT: not started. Where the process is a client (RUNLIST_OPERATIONS names a page), all of
 * its threads are, and this changes nothing.
 */
RL_API int rl_operations_client(int index);

/* The rule, in force from the next operation. At first: complementary classes, any SMs, copies at once, no gate. */
RL_API int rl_operations_admission(const struct rl_admission* admission);

/*
 * What is known of a kernel, by its (mangled) name: its class, how many SMs it fills, how long it runs. -EINVAL;
 * -ENOSPC: 2048 kernels are known. A kernel of which nothing is known is RL_UNKNOWN, on no SM, for no time.
 */
RL_API int rl_operations_profile(const char* kernel, uint32_t operation_class, uint32_t sms, int64_t duration_ns);

RL_API int rl_operations_counters(int client, struct rl_operations_counters* counters);

/*
 * How long client 0's newest stretches of work were (latency_ns of its counters), in ns, oldest first, each told once;
 * returns how many. There is room for 1024: what is not taken is overwritten. Where clients are processes, client 0's
 * own process alone has any. -EINVAL; -ENOENT.
 */
RL_API int rl_operations_latencies(uint64_t* latencies, int most);

/*
 * The newest operations of this process, oldest first; returns how many. There is room for 4096: what is not taken is
 * overwritten, and counted. Those that the GPU still has to do are left for the next time, as long as the log is on and
 * there is room. The log is off at first: it costs an event an operation.
 */
RL_API int rl_operations_log(int on);
RL_API int rl_operations_take(struct rl_operation* operations, int most);

/* Stop. All queues are drained first, within a bound. */
RL_API int rl_operations_stop(void);

/* The names that earlier schedulers of this kind have. */
RL_API int orion_start_scheduler(int clients);
RL_API void orion_set_client_idx(int index);
RL_API void orion_stop_scheduler(void);

#ifdef __cplusplus
}
#endif

#endif
