// Fuzzes without libFuzzer: `PROGRAM RUNS [SEED]` changes inputs that are in order, in the same way in each run. An
// input that fails is written to a file.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "checks/check.hpp"
#include "checks/fuzz.hpp"

namespace {

using runlist::checks::Numbers;

constexpr std::uint64_t kInteresting[] = {0,           1,          2,          15,    16,        17,
                                          63,          64,         1023,       1024,  1025,      0x7FFF'FFFF,
                                          0xFFFF'FFFF, 1ull << 32, 1ull << 63, ~0ull, ~0ull - 1, 9'999'999'999,
                                          1ull << 48};

// Most places in front, where the meaning is.
std::size_t place(Numbers& numbers, std::size_t size) {
    return size == 0 ? 0 : numbers.below((size >> numbers.below(20)) + 1) % size;
}

void change(std::string& input, Numbers& numbers, const std::vector<std::string>& dictionary) {
    const std::size_t at = place(numbers, input.size());
    switch (numbers.below(8)) {
        case 0:
            if (!input.empty()) input[at] = static_cast<char>(input[at] ^ 1 << numbers.below(8));
            break;
        case 1:
            if (!input.empty()) input[at] = static_cast<char>(numbers.next());
            break;
        case 2: {
            const std::uint64_t value = kInteresting[numbers.below(std::size(kInteresting))];
            const std::size_t width = std::size_t{1} << numbers.below(4);
            const std::size_t aligned = at / width * width;
            if (aligned + width <= input.size()) std::memcpy(&input[aligned], &value, width);
            break;
        }
        case 3:
            input.erase(at, 1 + numbers.below(16));
            break;
        case 4:
            input.insert(at, input.substr(place(numbers, input.size()), 1 + numbers.below(64)));
            break;
        case 5:
            input.resize(numbers.below(4) == 0 ? at : input.size() + numbers.below(3));
            break;
        default:
            if (!dictionary.empty()) {
                const std::string& word = dictionary[numbers.below(dictionary.size())];
                numbers.below(2) == 0 ? input.insert(at, word) : input.replace(at, word.size(), word);
            }
            break;
    }
}

std::string current;

void keep(int number) {
    std::FILE* file = std::fopen("fuzz-failure", "wb");
    if (file != nullptr) {
        std::fwrite(current.data(), 1, current.size(), file);
        std::fclose(file);
        std::fputs("the input is in fuzz-failure\n", stderr);
    }
    std::signal(number, SIG_DFL);
    std::raise(number);
}

}  // namespace

int main(int count, char** arguments) {
    const long runs = count > 1 ? std::atol(arguments[1]) : 1000;
    Numbers numbers(count > 2 ? std::strtoull(arguments[2], nullptr, 0) : 1);
    const std::vector<std::string> all = seeds();
    const std::vector<std::string> dictionary = words();
    std::signal(SIGABRT, keep);
    for (long run = 0; run < runs; ++run) {
        current = all[static_cast<std::size_t>(run) % all.size()];
        if (static_cast<std::size_t>(run) >= all.size()) {
            for (std::uint64_t changes = 1 + numbers.below(6); changes > 0; --changes) {
                change(current, numbers, dictionary);
            }
        }
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(current.data()), current.size());
    }
    std::puts("ok");
    return 0;
}
