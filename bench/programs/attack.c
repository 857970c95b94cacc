/*
 * A tenant that tries to hold more memory than its tree may. Each line of its standard input is a command, answered by
 * one line; the code that CUDA answered, where nothing else is said.
 *
 *   open               the primary context of device 0
 *   take MIB           memory
 *   give               frees what was taken last
 *   work               1 when a kernel (of the PTX that KERNELS names) ends within 0.3 s, else 0
 *   pid                its process id
 *   poke OFFSET VALUE  writes 64 bits into the tree's region, by a mapping of its own
 *   peek OFFSET        reads them
 *   cut BYTES          sets the region's size
 *   share MIB          makes memory, exports and imports it, and lets go of the first handle
 *   keep MIB           the same, and leaves the exported descriptor open
 *   queue MIB          makes memory, leaves its exported descriptor in a socket's queue, and lets go of all handles
 *   reexec MIB TIMES   keeps descriptors open over exec, and so many times takes memory and runs itself anew
 *   again MIB          runs itself anew, as programs do that mean no harm, and takes memory
 *   clone              goes on as a child that shares the address space, while the parent ends; its process id
 *   fork               goes on as a grandchild in a session of its own, while those above it end; its process id
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"

enum { MOST = 4096, FILE_DESCRIPTOR = 1, NOT_READY = 600 };

static const size_t kMiB = 1 << 20;
static const double kPatienceNs = 0.3e9;

static struct cuda cuda;
static address taken[MOST];
static int count;
static void *function, *stream;

static int open_gpu(void) {
    cuda = by_dlsym(driver_library());
    void* context;
    int device, code = cuda.cuInit(0);
    if (!code) code = cuda.cuDeviceGet(&device, 0);
    if (!code) code = cuda.cuDevicePrimaryCtxRetain(&context, device);
    if (!code) code = cuda.cuCtxSetCurrent(context);
    return code;
}

static int take(size_t bytes) {
    const int code = count < MOST ? cuda.cuMemAlloc(&taken[count], bytes) : -1;
    if (code == CUDA_SUCCESS) ++count;
    return code;
}

static int work(void) {
    if (!function) function = load_kernel(&cuda, getenv("KERNELS"));
    if (!stream) CHECK(cuda.cuStreamCreate(&stream, STREAM_NON_BLOCKING));
    const double began = now_ns(CLOCK_MONOTONIC);
    if (cuda.cuStreamQuery(stream) == CUDA_SUCCESS) CHECK(launch_empty(&cuda, function, stream));
    while (now_ns(CLOCK_MONOTONIC) - began < kPatienceNs) {
        if (cuda.cuStreamQuery(stream) == CUDA_SUCCESS) return 1;
        usleep(1000);
    }
    return 0;
}

static int region(void) {
    const int file = open(getenv("RUNLIST_REGION"), O_RDWR | O_CLOEXEC);
    if (file < 0) fail("RUNLIST_REGION", file);
    return file;
}

static uint64_t* word_of_region(size_t offset) {
    static char* mapped;
    if (!mapped) {
        const int file = region();
        struct stat about;
        fstat(file, &about);
        mapped = mmap(NULL, about.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (mapped == MAP_FAILED) fail("mmap", 0);
    }
    return (uint64_t*)(mapped + offset);
}

static int make_shared(size_t bytes, address* handle, int* file) {
    const struct properties properties = {.type = 1, .handle_types = FILE_DESCRIPTOR, .location_type = 1};
    int code = cuda.cuMemCreate(handle, bytes, &properties, 0);
    if (!code) code = cuda.cuMemExportToShareableHandle(file, *handle, FILE_DESCRIPTOR, 0);
    return code;
}

static int share(size_t bytes, int keeps_file) {
    address first, second;
    int file, code = make_shared(bytes, &first, &file);
    if (!code) code = cuda.cuMemImportFromShareableHandle(&second, (void*)(intptr_t)file, FILE_DESCRIPTOR);
    if (!code) code = cuda.cuMemRelease(first);
    if (!code && !keeps_file) close(file);
    return code;
}

static int queue(size_t bytes) {
    address handle;
    int file, pair[2], code = make_shared(bytes, &handle, &file);
    if (code) return code;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) return -1;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    struct iovec byte = {.iov_base = "", .iov_len = 1};
    const struct msghdr message = {
        .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room};
    if (sendmsg(pair[0], &message, 0) != 1) return -1;
    close(file);
    close(pair[0]); /* the other end keeps what is in its queue */
    return cuda.cuMemRelease(handle);
}

static void keep_descriptors(void) {
    struct dirent* entry;
    DIR* open = opendir("/proc/self/fd");
    while ((entry = readdir(open)) != NULL)
        if (atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(open)) fcntl(atoi(entry->d_name), F_SETFD, 0);
    closedir(open);
}

static void run_again(size_t bytes, int times) {
    char mib[32], left[32];
    snprintf(mib, sizeof mib, "%zu", bytes / kMiB);
    snprintf(left, sizeof left, "%d", times);
    execl("/proc/self/exe", "attack", mib, left, NULL);
    fail("execl", 0);
}

static void serve(void);

static int go_on(void* unused) {
    (void)unused;
    printf("%ld\n", (long)syscall(SYS_getpid));
    serve();
    return 0;
}

static void leave_by_clone(void) {
    static _Alignas(64) char stack[1 << 20];
    if (clone(go_on, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_FS | SIGCHLD, NULL) < 0) fail("clone", 0);
    syscall(SYS_exit_group, 0);
}

/* In the grandchild: its process id. */
static long leave_by_fork(void) {
    if (fork()) _exit(0);
    setsid();
    if (fork()) _exit(0);
    return syscall(SYS_getpid);
}

static void serve(void) {
    static char line[128]; /* a child that shares the address space has another stack */
    while (fgets(line, sizeof line, stdin)) {
        char word[16] = "";
        uint64_t first = 0, second = 0;
        long long answer = -1;
        sscanf(line, "%15s %lli %lli", word, (long long*)&first, (long long*)&second);
        if (!strcmp(word, "open")) answer = open_gpu();
        if (!strcmp(word, "take")) answer = take(first * kMiB);
        if (!strcmp(word, "give")) answer = count ? cuda.cuMemFree(taken[--count]) : -1;
        if (!strcmp(word, "work")) answer = work();
        if (!strcmp(word, "pid")) answer = syscall(SYS_getpid);
        if (!strcmp(word, "poke")) answer = 0, *(volatile uint64_t*)word_of_region(first) = second;
        if (!strcmp(word, "peek")) answer = (long long)*(volatile uint64_t*)word_of_region(first);
        if (!strcmp(word, "cut")) answer = ftruncate(region(), (off_t)first);
        if (!strcmp(word, "share")) answer = share(first * kMiB, 0);
        if (!strcmp(word, "keep")) answer = share(first * kMiB, 1);
        if (!strcmp(word, "queue")) answer = queue(first * kMiB);
        if (!strcmp(word, "reexec")) keep_descriptors(), run_again(first * kMiB, (int)second);
        if (!strcmp(word, "again")) run_again(first * kMiB, 1);
        if (!strcmp(word, "clone")) leave_by_clone();
        if (!strcmp(word, "fork")) answer = leave_by_fork();
        printf("%lld\n", answer);
    }
    exit(0);
}

int main(int argc, char** argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3) { /* run by ourselves, with the descriptors of those before us */
        const size_t bytes = strtoull(argv[1], NULL, 0) * kMiB;
        const int left = atoi(argv[2]);
        int code = open_gpu();
        if (!code) code = take(bytes);
        if (!code && left > 1) keep_descriptors(), run_again(bytes, left - 1);
        printf("%d\n", code);
    }
    serve();
    return 0;
}
