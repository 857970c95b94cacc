// Runs random programs and says which of them gave something else than they should: main SEED PROGRAMS [--clients N]
// [--steps N] [--times N] [--rule NAME] [--alone] [--apart] [--events] [--say]. With a rule the clients are those of
// the library that is preloaded. With --apart, calls for which NVIDIA's driver may wait until the whole context is
// idle, while it lets nobody else call it, are not made while work waits for the host; and there are at most 4 clients,
// whose streams have a queue of the GPU each (CUDA_DEVICE_MAX_CONNECTIONS=32). With --events graphs have nodes with
// events, after which no launch of a graph is queued.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "scheduled.hpp"

namespace {

using namespace operations;

void tell(const Program& program) {
    constexpr std::array kKinds{"legacy", "per thread", "made"};
    constexpr std::array kPlaces{"device", "pinned", "pageable", "made", "made in order"};
    for (std::size_t i = 0; i < program.streams.size(); ++i) {
        const Stream& stream = program.streams[i];
        std::printf("s%zu of %d: %s%s%s\n", i, stream.owner, kKinds.at(static_cast<std::size_t>(stream.kind)),
                    stream.blocking ? ", blocking" : "", stream.helper ? ", by the helper" : "");
    }
    for (std::size_t i = 0; i < program.buffers.size(); ++i)
        std::printf("b%zu of %d: %s\n", i, program.buffers[i].owner,
                    kPlaces.at(static_cast<std::size_t>(program.buffers[i].place)));
    for (std::size_t i = 0; i < program.clients.size(); ++i)
        for (std::size_t j = 0; j < program.clients[i].size(); ++j)
            std::printf("%zu.%zu %s\n", i, j, text(program.clients[i][j]).c_str());
}

long number(const char* text) { return std::strtol(text, nullptr, 10); }

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    const auto first = static_cast<std::uint64_t>(number(argv[1]));
    const auto many = static_cast<std::uint64_t>(number(argv[2]));
    int clients = 0;
    int steps = 0;
    int times = 1;
    const char* rule = nullptr;
    bool helpers = true;
    bool apart = false;
    bool events = false;
    bool say = false;
    for (int i = 3; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--clients" && i + 1 < argc) clients = static_cast<int>(number(argv[++i]));
        if (word == "--steps" && i + 1 < argc) steps = static_cast<int>(number(argv[++i]));
        if (word == "--rule" && i + 1 < argc) rule = argv[++i];
        if (word == "--times" && i + 1 < argc) times = static_cast<int>(number(argv[++i]));
        if (word == "--alone") helpers = false;
        if (word == "--apart") apart = true;
        if (word == "--events") events = true;
        if (word == "--say") say = true;
    }
    Machine machine(apart);
    Hooks nobody;
    const std::unique_ptr<Scheduled> scheduled = rule == nullptr ? nullptr : std::make_unique<Scheduled>(rule);
    Hooks& hooks = scheduled ? static_cast<Hooks&>(*scheduled) : nobody;
    int wrong = 0;
    for (std::uint64_t seed = first; seed < first + many; ++seed) {
        const int by_seed = seed % 16 == 0 && !apart ? 16 : static_cast<int>(seed % 4) + 1;
        const Program program = generate(seed, clients > 0 ? clients : by_seed, steps, helpers, events);
        if (say) tell(program);
        std::string why;
        for (int i = 0; i < times && why.empty(); ++i) why = run(machine, program, hooks);
        if (why.empty()) continue;
        std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), why.c_str());
        if (++wrong == 5) break;
    }
    if (scheduled)
        std::printf("launched %llu deferred %llu opened %llu\n", static_cast<unsigned long long>(scheduled->launched),
                    static_cast<unsigned long long>(scheduled->deferred),
                    static_cast<unsigned long long>(scheduled->opened));
    if (wrong == 0) std::printf("right %llu\n", static_cast<unsigned long long>(many));
    return wrong == 0 ? 0 : 1;
}
