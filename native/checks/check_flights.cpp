// What the rule admits beside client 0, for how long it counts as busy, and how far ahead of an idle one the others go.
#include "checks/operations_driver.hpp"

namespace {

using namespace runlist::checks;

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
    static constexpr std::int64_t kStandsNs = 50'000'000;
    Client& client = started();

    static Client& started() {
        REQUIRE(rl_operations_start(2) == 0);
        return engine.load()->all[1];
    }

    explicit Ahead(std::int64_t ahead_ns = kAheadNs) {
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
        flush(client);
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

    // The same, but for one more each time that this was held up so long that one more may go; two are none of these.
    std::size_t gives_soon(Kind kind, int count) const {
        const std::int64_t began_ns = runlist::monotonic_ns();
        const std::size_t given = gives(kind, count);
        const std::size_t late = (runlist::monotonic_ns() - began_ns) / kStandsNs;
        return given <= 2 ? given : given - std::min(late, given - 2);
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
        flush(bound.client);
        REQUIRE(given[1].numbers.size() == 43);
    }
    {
        const Ahead bound;
        REQUIRE(bound.gives(Kind::kCopy, 100) == 100);
        runlist::pause_ns(Ahead::kStandsNs + 1'000'000);  // nothing was there that could have ended
        REQUIRE(bound.gives_soon(Kind::kGraph, 5) == 2);
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
            flush(bound.client);
            while (any_flies(all)) land_all(all);
            in_flight.store(true);
        }
        REQUIRE(bound.gives_soon(Kind::kKernel, 17) <= 2);  // each as long as all may be
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
        {
            const Held held(all.asking);  // the dispatcher would see one of them land before the other
            landing.store(1 << 30);
        }
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

}  // namespace

int main() {
    rules();
    rests();
    ahead();
    std::puts("ok");
}
