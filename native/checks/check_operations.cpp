// Clients of several threads give work to a driver that is made here, while client 0 is busy and idle by turns. What
// each stream was given comes in order and once, whoever calls the driver; what was flushed is there. The ring of bytes
// keeps records of any length.
#include <pthread.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "checks/check.hpp"
#include "operations/engine.hpp"

namespace {

using namespace runlist::operations;
using runlist::checks::Numbers;

constexpr int kClientsHere = 3;
constexpr int kThreadsEach = 2;
constexpr int kRounds = 1500;
constexpr int kStreams = 1 + (kClientsHere - 1) * kThreadsEach;

struct Given {
    std::mutex mutex;
    std::vector<std::uint64_t> numbers;
};

Given given[kStreams];
std::atomic<bool> first_busy{false};
std::atomic<bool> in_flight{false};  // what others than client 0 gave, but for the next `landing` that are asked about
std::atomic<int> landing{0};

// Handles of the driver that is made here: never looked into.
CUstream stream_at(int index) {
    return reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(0x1000 + 0x100 * index));
}
const auto kContext = reinterpret_cast<CUcontext>(std::uintptr_t{0x77000});

CUresult get_current(CUcontext* context) {
    *context = kContext;
    return CUDA_SUCCESS;
}
CUresult set_current(CUcontext) { return CUDA_SUCCESS; }
CUresult make_stream(CUstream*, unsigned, int) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult query(CUstream stream) {
    if (stream == stream_at(0)) return first_busy.load() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    return in_flight.load() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
CUresult synchronize_stream(CUstream) { return CUDA_SUCCESS; }
CUresult wait_event(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }
CUresult make_event(CUevent* event, unsigned) {
    static std::atomic<std::uintptr_t> next{0x99000};
    *event = reinterpret_cast<CUevent>(next.fetch_add(0x10));
    return CUDA_SUCCESS;
}
CUresult record_event(CUevent, CUstream) { return CUDA_SUCCESS; }
CUresult query_event(CUevent) {
    if (in_flight.load()) return landing.load() != 0 && landing.fetch_sub(1) > 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    static std::atomic<unsigned> asked{0};
    return asked.fetch_add(1) % 3 == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult pointer(void*, CUpointer_attribute, CUdeviceptr) { return CUDA_SUCCESS; }

constexpr Calls kCalls{.cuCtxGetCurrent = get_current,
                       .cuCtxSetCurrent = set_current,
                       .cuStreamCreateWithPriority = make_stream,
                       .cuStreamQuery = query,
                       .cuStreamSynchronize = synchronize_stream,
                       .cuStreamWaitEvent = wait_event,
                       .cuEventCreate = make_event,
                       .cuEventRecord = record_event,
                       .cuEventQuery = query_event,
                       .cuPointerGetAttribute = pointer};

runlist::region::Slot told_slot;
runlist::region::Operations told;

struct Piece {
    int stream;
    std::uint64_t number;
};

CUresult take(const Piece& piece) {
    Given& there = given[piece.stream];
    const std::lock_guard lock(there.mutex);
    there.numbers.push_back(piece.number);
    return CUDA_SUCCESS;
}

CUresult run_piece(const Record& record) { return take(*static_cast<const Piece*>(record.rest())); }

void launch(Client& client, const Piece& piece, Kind kind) {
    Doing doing(client, kCalls, kind, stream_at(piece.stream), false, nullptr);
    if (!doing.goes_now()) {
        if (Record* record = doing.reserve(sizeof(Piece) + piece.number % 500)) {
            std::memcpy(record->rest(), &piece, sizeof(piece));
            record->run = run_piece;
            doing.commit(*record, nullptr);
            return;
        }
        doing.wait_for_turn();
    }
    doing.begin();
    doing.end(take(piece));
}

void work(int index, int stream) {
    REQUIRE(rl_operations_client(index) == 0);
    Client* client = client_of(nullptr);
    REQUIRE(client != nullptr && client->index == index);
    Numbers numbers(static_cast<std::uint64_t>(stream) + 1);
    for (std::uint64_t round = 0; round < kRounds; ++round) {
        launch(*client, {stream, round}, numbers.below(4) == 0 ? Kind::kEvent : Kind::kKernel);
        if (numbers.below(100) != 0) continue;
        REQUIRE(flush(*client) == CUDA_SUCCESS);
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
        runlist::pause_ns(100'000);  // else it is never quiet for long enough to be taken for idle
    }
}

void clients() {
    REQUIRE(rl_operations_start(0) == -EINVAL);
    REQUIRE(rl_operations_client(0) == -ENOENT);
    REQUIRE(rl_operations_start(kClientsHere) == 0);
    REQUIRE(rl_operations_start(kClientsHere) == -EALREADY);
    REQUIRE(rl_operations_client(kClientsHere) == -EINVAL);
    const rl_admission rule{.size = sizeof(rule), .beside = 0, .sms = 10, .copies = 1, .gate_ns = 100};
    REQUIRE(rl_operations_admission(&rule) == 0);
    REQUIRE(rl_operations_log(1) == 0);
    std::atomic<bool> ended{false};
    std::thread first(be_first, std::ref(ended));
    for (bool begun = false; !begun; std::this_thread::yield()) {  // or there might be nobody to wait for
        const std::lock_guard lock(given[0].mutex);
        begun = !given[0].numbers.empty();
    }
    std::vector<std::thread> threads;
    for (int stream = 1; stream < kStreams; ++stream) {
        threads.emplace_back(work, 1 + (stream - 1) / kThreadsEach, stream);
    }
    for (std::thread& thread : threads) thread.join();
    ended.store(true);
    first.join();
    first_busy.store(true);  // what is still queued goes all the same
    REQUIRE(rl_operations_stop() == 0);
    std::uint64_t deferred = 0;
    for (int stream = 1; stream < kStreams; ++stream) {
        REQUIRE(given[stream].numbers.size() == kRounds);
        for (std::uint64_t round = 0; round < kRounds; ++round) REQUIRE(given[stream].numbers[round] == round);
    }
    for (int index = 1; index < kClientsHere; ++index) {
        struct rl_operations_counters counters{};
        REQUIRE(rl_operations_counters(index, &counters) == 0);
        REQUIRE(counters.launched == std::uint64_t{kThreadsEach} * kRounds);
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
}

void rules() {
    Page page{};
    const Cost compute{.of_class = 1, .sms = 4, .duration_ns = 50};
    REQUIRE(!page.first.is_busy(0));
    page.first.works({.of_class = 2, .sms = 100});
    REQUIRE(admits(page, Kind::kKernel, compute, ~0ull));
    REQUIRE(!admits(page, Kind::kKernel, {.of_class = 2}, ~0ull));
    REQUIRE(!admits(page, Kind::kGraph, {}, ~0ull));
    REQUIRE(admits(page, Kind::kCopy, {}, ~0ull));
    page.admission.sms.store(6);
    page.others[2].sms.store(3);
    REQUIRE(!admits(page, Kind::kKernel, compute, ~0ull));
    REQUIRE(admits(page, Kind::kKernel, compute, ~0ull & ~4ull));  // whose process is gone
    page.others[2].sms.store(2);
    REQUIRE(admits(page, Kind::kKernel, compute, ~0ull));
    page.admission.gate_ns.store(60);
    REQUIRE(admits(page, Kind::kKernel, compute, ~0ull));
    page.others[3].duration_ns.store(11);
    REQUIRE(!admits(page, Kind::kKernel, compute, ~0ull));
    page.others[3].duration_ns.store(INT64_MAX);
    REQUIRE(!admits(page, Kind::kKernel, compute, ~0ull));
    page.admission.copies.store(0);
    REQUIRE(!admits(page, Kind::kFill, {}, ~0ull));
    REQUIRE(admits(page, Kind::kEvent, {}, ~0ull));
    page.first.newest.store(3);
    REQUIRE(!admits(page, Kind::kKernel, compute, ~0ull));
}

void rests() {
    Page page{};
    First& first = page.first;
    constexpr std::int64_t kHourNs = 3'600'000'000'000;
    REQUIRE(!first.is_busy(kHourNs));  // it has never worked
    first.works({});
    REQUIRE(first.is_busy(0));
    first.idle.store(0);
    first.worked.store(0);
    REQUIRE(first.is_working());
    first.has_ended(runlist::monotonic_ns());
    REQUIRE(!first.is_working());
    REQUIRE(!first.is_busy(0));
    REQUIRE(first.is_busy(500'000'000));
    first.has_ended(runlist::monotonic_ns() - 2 * kLongestRestNs);
    REQUIRE(!first.is_busy(kHourNs));                    // nobody holds the others for longer
    first.has_ended(runlist::monotonic_ns() + kHourNs);  // as a page may say
    REQUIRE(!first.is_busy(kHourNs));
    first.has_ended(runlist::monotonic_ns());
    first.rests();
    REQUIRE(!first.is_busy(500'000'000));
}

// What another client may have in flight while client 0 is idle. Nothing ends by itself here.
struct Ahead {
    static constexpr std::int64_t kAheadNs = 16'000;
    Client& client = engine.load()->all[1];

    explicit Ahead(std::int64_t ahead_ns = kAheadNs) {
        REQUIRE(rl_operations_start(2) == 0);
        rl_admission rule{
            .size = sizeof(rule), .beside = 0, .sms = 0, .copies = 0, .gate_ns = -1, .ahead_ns = -1, .rest_ns = 0};
        REQUIRE(rl_operations_admission(&rule) == -EINVAL);
        rule.ahead_ns = ahead_ns;
        REQUIRE(rl_operations_admission(&rule) == 0);
        rule.size = offsetof(rl_admission, ahead_ns);
        REQUIRE(rl_operations_admission(&rule) == 0 && engine.load()->page->admission.ahead_ns.load() == 0);
        rule.size = sizeof(rule);
        REQUIRE(rl_operations_admission(&rule) == 0);
        REQUIRE(rl_operations_client(1) == 0);
        engine.load()->page->first.rests();
        in_flight.store(true);
        given[1].numbers.clear();
    }
    ~Ahead() {
        in_flight.store(false);
        REQUIRE(flush(client) == CUDA_SUCCESS);
        while (any_flies(*engine.load())) land_all(*engine.load());
        REQUIRE(rl_operations_stop() == 0);
    }
    Ahead(const Ahead&) = delete;
    Ahead& operator=(const Ahead&) = delete;

    // How many of so many go at once.
    std::size_t gives(Kind kind, int count) const {
        const std::uint64_t before = client.queue.written();
        for (int number = 0; number < count; ++number) launch(client, {1, 0}, kind);
        return count - (client.queue.written() - before);
    }
};

void ahead() {
    {
        const Ahead bound;
        const std::size_t at_once = bound.gives(Kind::kKernel, 40);
        REQUIRE(at_once >= 17 && at_once < 40);     // a sixteenth each, one when it is full, and where this was held up
        REQUIRE(bound.gives(Kind::kCopy, 3) == 0);  // in order
        const std::uint64_t done = bound.client.queue.done();
        while (bound.client.queue.done() < done + 3) runlist::pause_ns(1'000'000);  // though nothing ends
        REQUIRE(!bound.client.queue.is_empty());
        in_flight.store(false);
        REQUIRE(flush(bound.client) == CUDA_SUCCESS);
        REQUIRE(given[1].numbers.size() == 43);
    }
    {
        const Ahead bound;
        REQUIRE(bound.gives(Kind::kCopy, 100) == 100);
        REQUIRE(bound.gives(Kind::kGraph, 5) == 2);
    }
    {
        Ahead bound;
        Engine& all = *engine.load();
        while (bound.client.guess_ns < Ahead::kAheadNs) {  // the dispatcher may look as well, at any moment
            bound.client.guess_ns = 0;
            bound.gives(Kind::kKernel, 15);
            land_all(all);  // it flies
            runlist::pause_ns(100'000);
            landing.store(2);
            land_all(all);  // four in 100 µs
            in_flight.store(false);
            REQUIRE(flush(bound.client) == CUDA_SUCCESS);
            while (any_flies(all)) land_all(all);
            in_flight.store(true);
        }
        REQUIRE(bound.gives(Kind::kKernel, 17) <= 2);  // each as long as all may be
    }
    {
        constexpr std::int64_t kLongNs = 1'600'000'000;
        Ahead bound(kLongNs);
        Engine& all = *engine.load();
        landing.store(1 << 30);  // as soon as it is asked
        for (int number = 0; number < 10'000; ++number) REQUIRE(bound.gives(Kind::kKernel, 1) == 1);
        land_all(all);  // all of it has landed: a bound of what each took
        const std::int64_t learnt_ns = bound.client.guess_ns;
        REQUIRE(learnt_ns != 0 && learnt_ns < kLongNs / 16);
        for (int number = 0; number < 10'000; ++number) REQUIRE(bound.gives(Kind::kKernel, 1) == 1);
        REQUIRE(bound.client.guess_ns <= learnt_ns);
        const std::int64_t now_ns = bound.client.guess_ns;
        landing.store(0);
        bound.gives(Kind::kKernel, 1);
        bound.gives(Kind::kGraph, 1);
        runlist::pause_ns(20'000'000);
        landing.store(1 << 30);
        while (any_flies(all)) land_all(all);  // it may have stood meanwhile: nothing is learnt
        REQUIRE(bound.client.guess_ns <= now_ns);
        landing.store(0);
    }
    {
        const Ahead bound;
        landing.store(1 << 30);  // as soon as it is asked
        REQUIRE(bound.gives(Kind::kGraph, 1) == 1);
        for (int number = 0; number < 1000; ++number) REQUIRE(bound.gives(Kind::kKernel, 1) == 1);
        landing.store(0);
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
}

}  // namespace

constinit const Surroundings runlist::operations::surroundings{
    .hooking = [] { return true; },
    .any_capture = [] { return false; },
    .join = [] {},
    .find = [](const char*) { return reinterpret_cast<void*>(&::pthread_create); },
    .told_in = [] { return Telling{.known = true, .slot = &told_slot, .operations = &told}; }};

int main() {
    table();
    rules();
    rests();
    ring();
    latencies();
    names();
    waits();
    clients();
    ahead();
    telling();
    std::puts("ok");
}
