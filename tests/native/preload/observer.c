/* Looks at the first GPU from outside: the most memory that was in use at any instant until its input ends. Prints
   `ready`, then the bytes and how often it looked. */
#include <nvml.h>
#include <poll.h>
#include <stdio.h>

int main(void) {
    nvmlDevice_t device;
    unsigned long long most = 0;
    long looks = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (nvmlInit_v2() != NVML_SUCCESS || nvmlDeviceGetHandleByIndex_v2(0, &device) != NVML_SUCCESS) return 1;
    do {
        nvmlMemory_t memory;
        if (nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS) return 2;
        if (memory.used > most) most = memory.used;
        if (looks++ == 0) {
            puts("ready");
            fflush(stdout);
        }
    } while (poll(&input, 1, 0) == 0);
    printf("%llu %ld\n", most, looks);
    return 0;
}
