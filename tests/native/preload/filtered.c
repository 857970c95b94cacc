/* `filtered NUMBER ERROR WHEN`: has a filter answer one system call with an error, or with the end of the program where
   it is 0, then takes two pieces of memory, of PIECE MiB each. WHEN is `exec` (before the library is there, which
   PRELOAD names), `use` (before the first use of the GPU) or `later`. Prints the driver's answers. */
#include <cuda.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void filter(const char* number, const char* error) {
    const unsigned action = atoi(error) == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | (unsigned)atoi(error);
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(number), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) exit(99);
}

static CUdeviceptr take(size_t bytes) {
    CUdeviceptr address = 0;
    printf("%d ", (int)cuMemAlloc(&address, bytes));
    return address;
}

static void use(void) {
    CUdevice device;
    CUcontext context;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device)) exit(98);
    if (cuCtxSetCurrent(context)) exit(97);
}

int main(int argc, char** argv) {
    if (argc == 4 && strcmp(argv[3], "exec") == 0) {
        if (getenv("PRELOAD") != NULL) setenv("LD_PRELOAD", getenv("PRELOAD"), 1);
        filter(argv[1], argv[2]);
        char* again[] = {argv[0], NULL};
        execv(argv[0], again);
        return 96;
    }
    if (argc == 4 && strcmp(argv[3], "use") == 0) filter(argv[1], argv[2]);
    use();
    if (argc == 4 && strcmp(argv[3], "later") == 0) {
        cuMemFree(take(8 * MIB));
        filter(argv[1], argv[2]);
    }
    const size_t piece = strtoul(getenv("PIECE"), NULL, 10) * MIB;
    const CUdeviceptr first = take(piece);
    take(piece);
    printf("%d ", (int)cuMemFree(first));
    take(piece);
    return puts("") == EOF;
}
