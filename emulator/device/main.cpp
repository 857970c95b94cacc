// runlist-emulated-gpu: one process that stands for the GPUs of a machine.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string_view>

#include "device/server.hpp"

namespace {

constexpr char kUsage[] = "usage: runlist-emulated-gpu --dir DIR [--gpus N] [--memory BYTES] [--exit-with-stdin]\n";
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr std::uint32_t kMaxGpus = 64;

template <typename T>
bool parse(std::string_view text, T& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value > 0;
}

std::optional<emulator::ServerOptions> options_from(int argc, char** argv) {
    emulator::ServerOptions options;
    for (int i = 1; i < argc; ++i) {
        const std::string_view name = argv[i];
        if (name == "--exit-with-stdin") {
            options.exit_with_stdin = true;
            continue;
        }
        if (i + 1 >= argc) return std::nullopt;
        const std::string_view value = argv[++i];
        if (name == "--dir" && !value.empty())
            options.directory = value;
        else if (name == "--gpus" && parse(value, options.gpus) && options.gpus <= kMaxGpus)
            continue;
        else if (name == "--memory" && parse(value, options.memory_bytes) && options.memory_bytes <= (1ULL << 39))
            continue;
        else
            return std::nullopt;
    }
    if (options.directory.empty()) return std::nullopt;
    return options;
}

// Every program takes two descriptors here, every reader of a context-switch log three.
void allow_many_descriptors() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int main(int argc, char** argv) {
    const auto options = options_from(argc, argv);
    if (!options) {
        std::fputs(kUsage, stderr);
        return kExitUsage;
    }
    ::prctl(PR_SET_TIMERSLACK, 1);
    std::signal(SIGPIPE, SIG_IGN);
    allow_many_descriptors();
    try {
        emulator::Server server(*options);
        std::puts("ready");
        std::fflush(stdout);
        server.run();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "runlist-emulated-gpu: %s\n", error.what());
        return kExitFailed;
    }
    return 0;
}
