/* A server that does what it is told: reads words from its input, and answers each with `WORD RESULT` once it is done.
   Its connections come over TCP to a port that it says first, or are a pair of its own. errno must stay as it was. */
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "faulting.h"
#include "guest.h"

static CUstream stream;
static CUdeviceptr memory, taken;
static CUgraph graph;
static CUcontext context;
static CUfunction kernel;
static int listener, connection = -1, other = -1;
static char bytes[4096];
static volatile int got_in_handler;

static int listens(void) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = 0};
    socklen_t length = sizeof(here);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr*)&here, length) || listen(listener, 100)) exit(4);
    getsockname(listener, (struct sockaddr*)&here, &length);
    return ntohs(here.sin_port);
}

static int takes(int made) {
    if (connection >= 0) close(connection);
    connection = made;
    return made < 0;
}

static int pairs(void) {
    int both[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, both)) return 1;
    other = both[1];
    return takes(both[0]);
}

/* What the other end is told by its number. */
static int pipes(void) {
    int both[2];
    if (pipe(both)) return -1;
    takes(both[0]);
    return other = both[1];
}

static int many(void) {
    struct iovec piece = {bytes, sizeof(bytes)};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}}};
    return recvmmsg(connection, messages, 1, 0, NULL) == 1 ? (int)messages[0].msg_len : -1;
}

/* How many can be read: of the connection, and before it of a pair in which threads wake one another. */
static int waits_for(const char* way) {
    static int set = -1, of = -1;
    struct pollfd both[2] = {{.fd = other, .events = POLLIN}, {.fd = connection, .events = POLLIN}};
    struct epoll_event found[4], event = {.events = EPOLLIN, .data.fd = connection};
    if (!strcmp(way, "poll")) return poll(both, 2, 1000);
    if (!strcmp(way, "checked")) {
        int (*poll_chk)(struct pollfd*, nfds_t, int, size_t) =
            (int (*)(struct pollfd*, nfds_t, int, size_t))(size_t)dlsym(RTLD_DEFAULT, "__poll_chk");
        return poll_chk(both, 2, 1000, sizeof(both));
    }
    if (set < 0) set = epoll_create1(0);
    if (of != connection && epoll_ctl(set, EPOLL_CTL_ADD, connection, &event)) return -1;
    of = connection;
    return !strcmp(way, "epoll") ? epoll_wait(set, found, 4, 1000) : epoll_pwait(set, found, 4, 1000, NULL);
}

/* What a read fails with. */
static int fails(void) {
    const int error = read(connection, bytes, sizeof(bytes)) < 0 ? errno : 0;
    errno = 77;
    return error;
}

/* Where the next peek begins, as the program set it. */
static int peeks_at(int at) {
    const int which = SO_PEEK_OFF;
    return setsockopt(connection, SOL_SOCKET, which, &at, sizeof(at));
}

static int reads(const char* way) {
    struct iovec piece = {bytes, sizeof(bytes)};
    struct iovec both[2] = {{bytes, 4}, {bytes + 4, sizeof(bytes) - 4}};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    /* One right after the other, as of one message. */
    if (!strcmp(way, "length")) return (int)read(connection, bytes, 4) + (int)read(connection, bytes, sizeof(bytes));
    if (!strcmp(way, "pieces")) return (int)readv(connection, both, 2);
    if (!strcmp(way, "recvmmsg")) return many();
    if (!strcmp(way, "nowhere")) return (int)recv(connection, NULL, sizeof(bytes), MSG_TRUNC);
    if (!strcmp(way, "recv")) return (int)recv(connection, bytes, sizeof(bytes), 0);
    if (!strcmp(way, "peek")) return (int)recv(connection, bytes, sizeof(bytes), MSG_PEEK);
    if (!strcmp(way, "peek-now")) return (int)recv(connection, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
    if (!strcmp(way, "recvfrom")) return (int)recvfrom(connection, bytes, sizeof(bytes), 0, NULL, NULL);
    if (!strcmp(way, "recvmsg")) return (int)recvmsg(connection, &message, 0);
    if (!strcmp(way, "readv")) return (int)readv(connection, &piece, 1);
    if (!strcmp(way, "checked")) {
        ssize_t (*read_chk)(int, void*, size_t, size_t) =
            (ssize_t (*)(int, void*, size_t, size_t))(size_t)dlsym(RTLD_DEFAULT, "__read_chk");
        return (int)read_chk(connection, bytes, sizeof(bytes), sizeof(bytes));
    }
    return (int)read(connection, bytes, sizeof(bytes));
}

static void handles(int number) {
    (void)number;
    got_in_handler = (int)read(connection, bytes, sizeof(bytes));
}

static void does_nothing(int number) { (void)number; }

static int installs(int flags) {
    struct sigaction action = {.sa_handler = does_nothing, .sa_flags = flags};
    return sigaction(SIGUSR2, &action, NULL);
}

static int in_a_handler(void) {
    raise(SIGUSR1);
    return got_in_handler;
}

static void* waits(void* unused) {
    (void)unused;
    return (void*)(size_t)read(connection, bytes, sizeof(bytes));
}

/* A thread that waits for bytes is cancelled. */
static int cancels(void) {
    pthread_t thread;
    void* result;
    pthread_create(&thread, NULL, waits, NULL);
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    return result != PTHREAD_CANCELED;
}

static int a_child_reads(int child) {
    int status;
    if (child == 0) _exit((int)read(connection, bytes, sizeof(bytes)));
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static int pauses(long milliseconds) {
    struct timespec length = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    return nanosleep(&length, NULL);
}

static int says(const char* name) {
    int (*function)(void) = (int (*)(void))(size_t)dlsym(RTLD_DEFAULT, name);
    return function();
}

static int hints(long microseconds) {
    int (*hint)(uint64_t) = (int (*)(uint64_t))(size_t)dlsym(RTLD_DEFAULT, "rl_hint_ns");
    return hint((uint64_t)microseconds * 1000);
}

static void hints_here(int number) {
    (void)number;
    got_in_handler = hints(0);
}

static int hints_in_a_handler(void) {
    signal(SIGUSR1, hints_here);
    raise(SIGUSR1);
    signal(SIGUSR1, handles);
    return got_in_handler;
}

/* In a thread that has no context of its own. */
static void* hints_there(void* unused) {
    (void)unused;
    return (void*)(size_t)hints(0);
}

static int hints_elsewhere(void) {
    pthread_t thread;
    void* result;
    pthread_create(&thread, NULL, hints_there, NULL);
    pthread_join(thread, &result);
    return (int)(size_t)result;
}

/* A host function of ours that faults, for which we have a handler: how often that was called. */
static int faults_in_host(void) {
    MUST(call_what_faults(stream));
    MUST(cuStreamSynchronize(stream));
    return faults;
}

/* What reads cost, in nanoseconds each: of messages that come by two ways in turn, so that each is another one. */
static int costs(void) {
    struct timespec from, to;
    enum { kTurns = 100, kTimes = 200 };
    char text[300];
    int ends[2][2];
    long best = 1000000;
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 'y';
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends[0]) || socketpair(AF_UNIX, SOCK_STREAM, 0, ends[1])) return -1;
    for (int turn = 0; turn < kTurns; ++turn) {
        long sum = 0;
        for (int times = 0; times < kTimes; ++times) {
            const int* end = ends[times % 2];
            memcpy(text + 64, &times, sizeof(times));
            if (write(end[1], text, sizeof(text)) != sizeof(text)) return -1;
            clock_gettime(CLOCK_MONOTONIC, &from);
            if (read(end[0], bytes, sizeof(bytes)) != sizeof(text)) return -1;
            clock_gettime(CLOCK_MONOTONIC, &to);
            sum += (to.tv_sec - from.tv_sec) * 1000000000L + to.tv_nsec - from.tv_nsec;
        }
        if (sum / kTimes < best) best = sum / kTimes;
    }
    return (int)best;
}

static int does(const char* word) {
    if (!strcmp(word, "accept")) return takes(accept(listener, NULL, NULL));
    if (!strcmp(word, "accept4")) return takes(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    if (!strncmp(word, "wait-", 5)) return waits_for(word + 5);
    if (!strcmp(word, "fails")) return fails();
    if (!strcmp(word, "peek-at-0")) return peeks_at(0);
    if (!strcmp(word, "first")) return bytes[0];
    if (!strcmp(word, "pair")) return pairs();
    if (!strcmp(word, "pipe")) return pipes();
    if (!strcmp(word, "standard")) return takes(dup2(connection, 2));
    if (!strcmp(word, "wake")) return write(other, "", 1) != 1;
    if (!strcmp(word, "tell")) return write(other, "told", 4) != 4;
    if (!strcmp(word, "file")) return dup2(open("/dev/zero", O_RDONLY), connection) < 0;
    if (!strncmp(word, "read-", 5)) return reads(word + 5);
    if (!strcmp(word, "handler")) return in_a_handler();
    if (!strcmp(word, "nodefer")) return installs(SA_NODEFER);
    if (!strcmp(word, "defer")) return installs(0);
    if (!strcmp(word, "cancel")) return cancels();
    if (!strcmp(word, "fork")) return a_child_reads(fork());
    if (!strcmp(word, "vfork")) return a_child_reads(vfork());
    if (!strcmp(word, "cost")) return costs();
    if (!strcmp(word, "begin")) return says("rl_request_begin");
    if (!strcmp(word, "end")) return says("rl_request_end");
    if (!strcmp(word, "hint")) return hints(0);
    if (!strncmp(word, "hint-", 5)) return hints(atoi(word + 5));
    if (!strcmp(word, "handler-hint")) return hints_in_a_handler();
    if (!strcmp(word, "thread-hint")) return hints_elsewhere();
    if (!strcmp(word, "host-faults")) return faults_in_host();
    if (!strcmp(word, "launch")) return launch(kernel, memory, 256, 1, stream);
    if (!strcmp(word, "stream")) return cuStreamSynchronize(stream);
    if (!strcmp(word, "capture")) return cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!strcmp(word, "captured")) return cuStreamEndCapture(stream, &graph);
    if (!strcmp(word, "take")) return cuMemAlloc(&taken, 4 * kMiB);
    if (!strcmp(word, "give")) return cuMemFree(taken);
    if (!strcmp(word, "reset")) return cuDevicePrimaryCtxReset(0);
    if (!strncmp(word, "pause-", 6)) return pauses(atoi(word + 6));
    return -1;
}

int main(void) {
    char word[64];
    signal(SIGUSR1, handles);
    context = begin();
    kernel = accumulate();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&memory, 4096));
    printf("ready %d\n", listens());
    fflush(stdout);
    while (scanf("%63s", word) == 1) {
        errno = 77;
        const int result = does(word);
        if (errno != 77) printf("errno-after-%s %d\n", word, errno);
        printf("%s %d\n", word, result);
        fflush(stdout);
    }
    _exit(0);
}
