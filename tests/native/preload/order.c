/* Client 1 has a kernel and a record of an event queued; then it calls a function, and client 2 another one of the same
   kind. Prints the functions that the driver saw before that kernel, or that never came: CALLS is made of the header.
 */
#include "order.h"

#include <cuda.h> /* with all forms of its functions, and so without guest.h */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runlist_operations.h"

#define MUST(call) ((call) == 0 ? (void)0 : (perror(#call), _Exit(9)))
#define RL(name) ((__typeof__(&name))dlsym(RTLD_DEFAULT, #name))

static char buffer[1 << 16];
static CUstream stream; /* others for each function, which may end them */
static CUevent event;
static CUlaunchConfig config = {
    .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};

struct calls {
    const char* name;
    void (*call)(void);
};

#include "calls.h"

static struct {
    const struct calls* one;
    int client;
    atomic_int ended;
} now;

static void* calls_it(void* unused) {
    (void)unused;
    MUST(RL(rl_operations_client)(now.client));
    now.one->call();
    now.ended = 1;
    return NULL;
}

static uint64_t waited(void) {
    struct rl_operations_counters one;
    MUST(RL(rl_operations_counters)(1, &one));
    return one.flushed;
}

static void try_it(const struct calls* one, int client) {
    pthread_t thread;
    static uintptr_t number;
    stream = (CUstream)(0x100000 + 0x100 * ++number);
    event = (CUevent)(0x200000 + 0x100 * number);
    memset(buffer, 0, sizeof(buffer));
    config.hStream = stream;
    order_reset();
    order_busy(1);
    MUST(RL(rl_operations_client)(0));
    MUST(cuLaunchKernel(FUNCTION, 1, 1, 1, 1, 1, 1, 0, FIRST, NULL, NULL));
    MUST(RL(rl_operations_client)(1));
    MUST(cuLaunchKernel(FUNCTION, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    MUST(cuEventRecord(event, stream));
    if (order_of("cuLaunchKernel", stream) >= 0) printf("%s: nothing was queued\n", one->name);
    const uint64_t before = waited();
    now.one = one;
    now.client = client;
    now.ended = 0;
    MUST(pthread_create(&thread, NULL, calls_it, NULL));
    for (int look = 0; look < 200 && !now.ended && waited() == before; ++look) usleep(100);
    order_busy(0);
    MUST(pthread_join(thread, NULL));
    MUST(cuStreamSynchronize(stream));
    const int kernel = order_of("cuLaunchKernel", stream), its = order_of(one->name, NULL);
    if (its < 0 || kernel < 0 || its < kernel)
        printf("%s by client %d: %d, the kernel %d\n", one->name, client, its, kernel);
}

int main(void) {
    const struct rl_admission closed = {.size = sizeof(closed), .gate_ns = -1};
    setvbuf(stdout, NULL, _IOLBF, 0);
    MUST(RL(rl_operations_start)(3));
    MUST(RL(rl_operations_admission)(&closed));
    for (const struct calls* one = own; one->name != NULL; ++one) try_it(one, 1);
    for (const struct calls* one = all; one->name != NULL; ++one) try_it(one, 2);
    MUST(RL(rl_operations_stop)());
    return 0;
}
