// Clients of several threads give work to a driver that is made here, while client 0 is busy and idle by turns. What
// each stream was given comes in order and once, whoever calls the driver; what was flushed is there. The ring of bytes
// keeps records of any length.
#include <deque>
#include <string>
#include <thread>

#include "checks/operations_driver.hpp"
#include "operations/patience.hpp"

namespace {

using namespace runlist::checks;

constexpr int kClientsHere = 3;
constexpr int kThreadsEach = 2;
constexpr int kRounds = 1500;
static_assert(kShared == 1 + (kClientsHere - 1) * kThreadsEach);

void work(int index, int stream) {
    REQUIRE(rl_operations_client(index) == 0);
    Client* client = client_of(nullptr);
    REQUIRE(client != nullptr && client->index == index);
    Numbers numbers(static_cast<std::uint64_t>(stream) + 1);
    for (std::uint64_t round = 0; round < kRounds; ++round) {
        launch(*client, {stream, round}, numbers.below(4) == 0 ? Kind::kEvent : Kind::kKernel);
        if (round % 64 == 0) launch(*client, {kShared, round}, Kind::kGraph);  // a stream that all of them use
        if (numbers.below(100) != 0) continue;
        flush(*client);
        const std::lock_guard lock(given[stream].mutex);
        REQUIRE(given[stream].numbers.size() == round + 1);
    }
}

void be_first(std::atomic<bool>& ended) {
    REQUIRE(rl_operations_client(0) == 0);
    Client* client = client_of(nullptr);
    for (std::uint64_t round = 0; !ended.load(); ++round) {
        first_busy.store(true);
        launch(*client, {0, round}, Kind::kKernel);
        for (int pause = 0; pause < 50; ++pause) std::this_thread::yield();
        first_busy.store(false);
        // Else it is never quiet for long enough to be taken for idle: now and then for a thread that has to wait for
        // its processor, too.
        runlist::pause_ns(round % 16 == 0 ? 5'000'000 : 100'000);
    }
}

void clients() {
    set_bound(600'000'000'000);  // nobody goes without the rule, however busy the machine is
    REQUIRE(rl_operations_start(0) == -EINVAL);
    REQUIRE(rl_operations_client(0) == -ENOENT);
    REQUIRE(rl_operations_start(kClientsHere) == 0);
    REQUIRE(rl_operations_start(kClientsHere) == -EALREADY);
    REQUIRE(rl_operations_client(kClientsHere) == -EINVAL);
    const rl_admission rule{
        .size = sizeof(rule), .beside = 0, .sms = 10, .copies = 1, .gate_ns = 100, .ahead_ns = 100'000};
    REQUIRE(rl_operations_admission(&rule) == 0);
    REQUIRE(rl_operations_log(1) == 0);
    std::atomic<bool> ended{false};
    std::thread first(be_first, std::ref(ended));
    for (bool begun = false; !begun; std::this_thread::yield()) {  // or there might be nobody to wait for
        const std::lock_guard lock(given[0].mutex);
        begun = !given[0].numbers.empty();
    }
    std::vector<std::thread> threads;
    for (int stream = 1; stream < kShared; ++stream) {
        threads.emplace_back(work, 1 + (stream - 1) / kThreadsEach, stream);
    }
    for (std::thread& thread : threads) thread.join();
    ended.store(true);
    first.join();
    first_busy.store(true);  // what is still queued goes all the same
    REQUIRE(rl_operations_stop() == 0);
    std::uint64_t deferred = 0;
    for (int stream = 1; stream < kShared; ++stream) {
        REQUIRE(given[stream].numbers.size() == kRounds);
        for (std::uint64_t round = 0; round < kRounds; ++round) REQUIRE(given[stream].numbers[round] == round);
    }
    for (int index = 1; index < kClientsHere; ++index) {
        struct rl_operations_counters counters{};
        REQUIRE(rl_operations_counters(index, &counters) == 0);
        REQUIRE(counters.launched == std::uint64_t{kThreadsEach} * (kRounds + (kRounds + 63) / 64));
        REQUIRE(counters.opened == 0);
        deferred += counters.deferred;
    }
    REQUIRE(deferred > 0);
    REQUIRE(told_slot.clients.load() == 0);  // nobody is told any more
    rl_operation taken[64];
    REQUIRE(rl_operations_take(taken, 64) == 64);
    std::uint64_t latencies[8];
    REQUIRE(rl_operations_latencies(nullptr, 8) == -EINVAL);
    REQUIRE(rl_operations_latencies(latencies, 8) == 0);  // nobody waited
    REQUIRE(rl_operations_stop() == -ENOENT);
}

// The middle one of the newest waits, and of those alone.
void waits() {
    static Lately lately;
    REQUIRE(lately.middle_wait() == 0);
    for (const std::uint64_t wait : {9, 2, 7}) lately.add_wait(wait);
    REQUIRE(lately.middle_wait() == 7);
    REQUIRE(lately.middle_wait() == 0);
    for (std::uint64_t wait = 0; wait < 10'000; ++wait) lately.add_wait(10'000 - wait);
    REQUIRE(lately.middle_wait() == 128);  // of 1 to 255
}

// What others are told: all that happened since the last time, once.
void telling() {
    told.written_ns.store(0);
    first_busy.store(false);
    REQUIRE(rl_operations_start(2) == 0);
    REQUIRE(rl_operations_client(1) == 0);
    Client* client = client_of(nullptr);
    std::uint64_t launched = 0;
    std::uint64_t lately = 0;
    for (std::uint64_t seen = 0; launched < 100 || seen == 0;) {
        if (launched < 100) launch(*client, {1, launched++}, Kind::kKernel);
        const std::uint64_t written = told.written_ns.load();
        if (written != seen) {
            seen = written;
            lately += told.clients[1].lately_launched.load();
        }
        std::this_thread::yield();
    }
    while (told_slot.clients.load() == 0) std::this_thread::yield();  // it is said last
    REQUIRE(told_slot.clients.load() == 3);
    while (lately < launched) {
        for (const std::uint64_t before = told.written_ns.load(); told.written_ns.load() == before;)
            std::this_thread::yield();
        lately += told.clients[1].lately_launched.load();
    }
    REQUIRE(lately == launched && told.clients[1].launched.load() == launched);
    REQUIRE(told.window_ns.load() >= 1'000'000'000);
    REQUIRE(rl_operations_stop() == 0);
    REQUIRE(told_slot.clients.load() == 0);
}

// Several threads end stretches while one takes them: each is told once, but for those that were overwritten.
void latencies() {
    static Latencies made;
    constexpr std::uint64_t kEach = 20'000;
    std::vector<std::thread> threads;
    std::atomic<int> writing{3};
    for (std::uint64_t writer = 0; writer < 3; ++writer) {
        threads.emplace_back([&, writer] {
            for (std::uint64_t round = 0; round < kEach; ++round) made.put(writer << 32 | round);
            writing.fetch_sub(1);
        });
    }
    std::vector<std::vector<unsigned char>> seen(3, std::vector<unsigned char>(kEach));
    std::uint64_t some[100];
    for (bool last = false; !last;) {
        last = writing.load() == 0;
        for (int count = 1; count > 0;) {
            count = made.take(some, 100);
            for (int at = 0; at < count; ++at) {
                REQUIRE(some[at] >> 32 < 3);
                REQUIRE((some[at] & 0xFFFF'FFFF) < kEach);
                REQUIRE(seen[some[at] >> 32][some[at] & 0xFFFF'FFFF]++ == 0);
            }
        }
    }
    for (std::thread& thread : threads) thread.join();
    for (std::uint64_t number = 0; number < 3 * Latencies::kRoom; ++number) made.put(number);
    std::uint64_t newest[2 * Latencies::kRoom];
    REQUIRE(made.take(newest, 2 * Latencies::kRoom) == static_cast<int>(Latencies::kRoom));
    for (std::uint64_t at = 0; at < Latencies::kRoom; ++at) REQUIRE(newest[at] == 2 * Latencies::kRoom + at);
    REQUIRE(made.take(newest, 1) == 0);
}

constinit const char* function_name = "";

CUresult name_function(const char** name, CUfunction) {
    *name = function_name;
    return CUDA_SUCCESS;
}

// What the log calls a kernel is a name of it, however long its own is; and two that begin alike are two.
void names() {
    static Kernels kernels;
    const Calls calls{.cuFuncGetName = name_function};
    const std::string begin(50, 'k');
    std::vector<std::string> names{"short", std::string(63, 'x'), std::string(64, 'x'), begin + std::string(30, 'a'),
                                   begin + std::string(30, 'b')};
    std::vector<std::string> seen;
    for (std::size_t at = 0; at < names.size(); ++at) {
        const auto function = reinterpret_cast<CUfunction>(0x5000 + 0x100 * at);
        function_name = names[at].c_str();
        REQUIRE(kernels.visit(calls, function, [&](const Kernel& kernel) { seen.emplace_back(kernel.name.data()); }));
        REQUIRE(seen.back().size() <= 63);
        REQUIRE((seen.back() == names[at]) == (names[at].size() < 64));
        for (std::size_t other = 0; other < at; ++other) REQUIRE(seen[other] != seen[at]);
        REQUIRE(kernels.profile(seen[at], {.of_class = 1, .sms = static_cast<std::uint32_t>(at + 1)}) == 0);
    }
    for (std::size_t at = 0; at < names.size(); ++at) {
        const auto function = reinterpret_cast<CUfunction>(0x5000 + 0x100 * at);
        REQUIRE(kernels.cost_of(calls, function).sms == at + 1);
        REQUIRE(kernels.profile(names[at], {.of_class = 2, .sms = 9}) == 0);  // by its whole name it is the same
        REQUIRE(kernels.cost_of(calls, function).sms == 9);
    }
    REQUIRE(kernels.profile(std::string(46, 'k') + "~0123456789abcdeg", {.of_class = 1, .sms = 3}) == 0);  // no digits
}

void ring() {
    static Queue queue;
    Numbers numbers(7);
    std::deque<std::vector<unsigned char>> model;
    for (int round = 0; round < 20'000; ++round) {
        if (numbers.below(2) == 0) {
            std::vector<unsigned char> record(1 + numbers.below(numbers.below(50) == 0 ? 100'000 : 600));
            for (auto& byte : record) byte = static_cast<unsigned char>(numbers.next());
            void* place = queue.reserve(record.size());
            if (place == nullptr) continue;
            std::memcpy(place, record.data(), record.size());
            queue.commit();
            model.push_back(record);
        } else if (void* front = queue.front()) {
            REQUIRE(std::memcmp(front, model.front().data(), model.front().size()) == 0);
            queue.pop();
            model.pop_front();
        }
        REQUIRE(queue.is_empty() == model.empty());
        REQUIRE(queue.written() - queue.done() == model.size());
    }
    while (queue.front() != nullptr) queue.pop();
    const void* const place = queue.reserve(100);
    queue.commit();
    REQUIRE(queue.front() == place);
    queue.pop();
    REQUIRE(queue.reserve(100) == place);  // one that is empty stays in the memory that was used last
}

// Nothing goes beside client 0.
int admit_none() {
    const rl_admission closed{.size = sizeof(closed), .beside = 0, .sms = 0, .copies = 0, .gate_ns = -1};
    return rl_operations_admission(&closed);
}

// Who waits for the last of many operations is not roused for each of them: for that one, and where somebody else
// waited.
void rousing() {
    first_busy.store(true);
    REQUIRE(rl_operations_start(2) == 0);
    REQUIRE(admit_none() == 0);
    Client& first = engine.load()->all[0];
    Client& client = engine.load()->all[1];
    launch(first, {0, 0}, Kind::kKernel);
    for (std::uint64_t number = 0; number < 50; ++number) launch(client, {1, number}, Kind::kKernel);
    REQUIRE(client.queue.written() - client.queue.done() == 50);
    const std::uint32_t roused = client.drained.load();
    std::thread waits([&] { flush(client); });
    while (client.awaited.load() == 0) std::this_thread::yield();
    first_busy.store(false);
    waits.join();
    REQUIRE(client.drained.load() - roused <= 2);
    REQUIRE(rl_operations_stop() == 0);
}

std::atomic<int> slow{0};

CUresult run_slowly(const Record&) {
    runlist::pause_ns(1'000'000);
    slow.fetch_add(1);
    return CUDA_SUCCESS;
}

// A queue that moves is waited for to its end, however long that takes.
void patience() {
    static Queue queue;
    for (int record = 0; record < 2; ++record) {
        REQUIRE(queue.reserve(16) != nullptr);
        queue.commit();
    }
    Patience none(queue, 0);
    for (int record = 0; record < 2; ++record) {
        runlist::pause_ns(1'000);
        REQUIRE(none.is_over());
        REQUIRE(queue.front() != nullptr);
        queue.pop();
        REQUIRE(!none.is_over());
    }
    set_bound(100'000'000);  // twice that is what nothing may move for
    first_busy.store(true);
    REQUIRE(rl_operations_start(2) == 0);
    set_bound(10'000'000'000);
    REQUIRE(admit_none() == 0);
    Client& client = engine.load()->all[1];
    launch(engine.load()->all[0], {0, 0}, Kind::kKernel);
    constexpr int kMany = 250;
    for (int number = 0; number < kMany; ++number) {
        const Call made;
        Doing doing(made, client, kCalls, Kind::kKernel, stream_at(1), false, nullptr);
        REQUIRE(!doing.goes_now());
        Record* record = doing.reserve(0, nullptr);
        REQUIRE(record != nullptr);
        record->run = run_slowly;
        doing.commit();
    }
    first_busy.store(false);
    flush(client);
    REQUIRE(slow.load() == kMany);
    REQUIRE(rl_operations_stop() == 0);
}

// How long something waits whatever the rule says is counted from when it is the first in its queue: where there is
// much to do each waits for long.
void turns() {
    first_busy.store(false);
    REQUIRE(rl_operations_start(2) == 0);
    REQUIRE(admit_none() == 0);
    Client& client = engine.load()->all[1];
    slow.store(0);
    const auto queue = [&](std::int64_t ago_ns) {
        const Call made;
        Doing doing(made, client, kCalls, Kind::kKernel, stream_at(1), false, nullptr);
        Record* record = doing.goes_now() ? nullptr : doing.reserve(0, nullptr);
        REQUIRE(record != nullptr);
        record->run = run_slowly;
        record->work.called_ns -= ago_ns;
        doing.commit();
    };
    first_busy.store(true);
    launch(engine.load()->all[0], {0, 0}, Kind::kKernel);
    queue(0);
    queue(3'600'000'000'000);
    client.forced.store(client.queue.done() + 1);  // the first of them goes
    wake();
    while (slow.load() == 0) std::this_thread::yield();
    for (int look = 0; look < 20; ++look) runlist::pause_ns(1'000'000);
    REQUIRE(slow.load() == 1 && client.opened.load() == 0);
    first_busy.store(false);
    flush(client);
    REQUIRE(slow.load() == 2);
    REQUIRE(rl_operations_stop() == 0);
}

// One thread starts and stops, others go on: nothing that they give is lost, or comes out of order. Two that stop or
// start at once do not get into each other's way.
void restarts() {
    for (Given& one : given) one.numbers.clear();
    std::atomic<bool> ended{false};
    std::uint64_t counts[3]{};
    std::vector<std::thread> threads;
    for (int stream = 1; stream < 3; ++stream) {
        threads.emplace_back([&, stream] {
            for (std::uint64_t& round = counts[stream]; !ended.load(); ++round) {
                if (engine.load()->runs()) {
                    launch(engine.load()->all[stream], {stream, round}, Kind::kKernel);
                } else {
                    take({stream, round});
                }
                std::this_thread::yield();
            }
        });
    }
    threads.emplace_back([&] {
        while (!ended.load()) {
            rl_operations_stop();
            std::this_thread::yield();
        }
    });
    for (int round = 0; round < 50; ++round) {
        const int started = rl_operations_start(3);
        REQUIRE(started == 0 || started == -EALREADY);
        admit_none();
        engine.load()->page->first.works({});
        for (int pause = 0; pause < 50; ++pause) std::this_thread::yield();
        rl_operations_stop();
    }
    ended.store(true);
    for (std::thread& thread : threads) thread.join();
    rl_operations_stop();
    for (int stream = 1; stream < 3; ++stream) {
        REQUIRE(given[stream].numbers.size() == counts[stream]);
        for (std::uint64_t round = 0; round < counts[stream]; ++round) REQUIRE(given[stream].numbers[round] == round);
    }
}

// A free place has no key, and so no key has a value.
void table() {
    static Table<int, 4> numbers;
    int word = 0;
    REQUIRE(numbers.find(nullptr) == nullptr);
    *numbers.add(&word, [](int& value) { value = 7; }, [](int) { return false; }) = 8;
    REQUIRE(numbers.find(nullptr) == nullptr);
    numbers.remove(nullptr);
    REQUIRE(*numbers.find(&word) == 8);
    numbers.remove(&word);
    REQUIRE(numbers.find(&word) == nullptr);
    static Table<int, 128> many;
    static char keys[256];
    for (char& key : keys) many.add(&key, [](int& value) { value = 0; }, [](int) { return false; });
    for (int round = 1; round <= 2; ++round) {
        many.each([&](const void* key, int& value) {
            ++value;
            if (value == round && static_cast<const char*>(key) - keys >= 128) many.remove(key);
        });
        for (const char& key : keys) REQUIRE((many.find(&key) != nullptr) == (&key - keys < 128));
    }
    for (int at = 0; at < 128; ++at) REQUIRE(*many.find(&keys[at]) == 2);
}

}  // namespace

int main() {
    table();
    ring();
    latencies();
    names();
    waits();
    clients();
    telling();
    patience();
    turns();
    rousing();
    restarts();
    std::puts("ok");
}
