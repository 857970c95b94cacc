// Joins as the library does: joiner CLIENT CONTROL [REGION [TIMES [AGAIN]]]. The two are paths to open; a number
// instead is taken for a descriptor. With AGAIN it says "joined", and after a line that it reads that its client works,
// twice, and that another one does. Prints errno, which was 77, the number of descriptors before and after, and for
// each time the ns that passed, and those that it had a processor.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "core/guest.hpp"
#include "tenant/join.hpp"

namespace {

int descriptor(const char* word) { return *word == '/' ? open(word, O_RDONLY) : std::atoi(word); }

int count_open() {
    struct stat found{};
    int count = 0;
    for (int fd = 0; fd < 256; ++fd) count += fstat(fd, &found) == 0;
    return count;
}

std::int64_t processor_ns() {
    timespec used{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * 1'000'000'000 + used.tv_nsec;
}

}  // namespace

int main(int argc, char** argv) {
    const auto client = static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 0));
    const int control = descriptor(argv[2]);
    const int region = argc > 3 ? descriptor(argv[3]) : -1;
    const int times = argc > 4 ? std::atoi(argv[4]) : 1;
    const int before = count_open();
    errno = 77;
    const std::int64_t start = runlist::monotonic_ns();
    const std::int64_t used = processor_ns();
    for (int time = 0; time < times; ++time) runlist::join(control, client, region);
    const std::int64_t took = (runlist::monotonic_ns() - start) / times;
    const std::int64_t worked = (processor_ns() - used) / times;
    const int error = errno;
    if (argc > 5) {
        std::puts("joined");
        std::fflush(stdout);
        std::getchar();
        for (const std::uint32_t each : {client + 1, client, client}) {
            const timespec pause{.tv_sec = 0, .tv_nsec = 2'000'000};
            nanosleep(&pause, nullptr);
            runlist::join_again(control, each, region);
        }
    }
    std::printf("%d %d %d %lld %lld\n", error, before, count_open(), static_cast<long long>(took),
                static_cast<long long>(worked));
    return 0;
}
