// The emulated GPU's model, to the nanosecond: who is on the GPU from when to when, and when each kernel ends.
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "model/busy_history.hpp"
#include "model/copy_engine.hpp"
#include "model/runlist.hpp"
#include "model/timing.hpp"

namespace {

using namespace emulator;

constexpr Time us = 1'000;
constexpr Time ms = 1'000'000;
constexpr std::uint32_t kAll = ~0U;

int wrong = 0;

template <typename Value>
void expect(const char* what, const Value& found, const Value& wanted) {
    const bool right = found == wanted;
    wrong += !right;
    if constexpr (std::is_same_v<Value, std::string>) {
        if (!right) std::fprintf(stderr, "found  %s\nwanted %s\n", found.c_str(), wanted.c_str());
    }
    std::printf("%s\t%s\n", right ? "right" : "wrong", what);
}

// What happened, in words with times in microseconds.
struct Log : RunlistListener {
    std::string text;
    std::function<void(QueueId, Time)> completed;

    void add(const char* what, std::uint32_t which, Time at) {
        text += std::string(what) + std::to_string(which) + "@" + std::to_string(at / us) +
                (at % us != 0 ? "+" + std::to_string(at % us) : "") + " ";
    }
    void on_progress(QueueId queue, double fraction) override {
        text += "p" + std::to_string(queue) + "=" + std::to_string(static_cast<int>(fraction * 10'000 + 0.5)) + " ";
    }
    void on_complete(QueueId queue, Time at) override {
        add("c", queue, at);
        if (completed) completed(queue, at);
    }
    void on_start(GroupId group, Time at) override { add("s", group, at); }
    void on_end(GroupId group, Time at) override { add("e", group, at); }
};

struct Model {
    Log log;
    Runlist runlist{log};
    std::vector<QueueId> queues;

    GroupId group(Time slice, int queues_of_it = 1, int priority = 0) {
        const GroupId made = runlist.add_group(slice);
        for (int index = 0; index < queues_of_it; ++index) queues.push_back(runlist.add_queue(made, priority, index));
        return made;
    }
    std::string until(Time at) {
        runlist.advance(at);
        return log.text;
    }
};

Work work(Time wave, std::uint64_t waves = 1, std::uint64_t order = 0) {
    return {.waves = waves, .wave = wave, .order = order};
}

void check_order() {
    Model one;
    one.group(1 * ms, 3);
    one.runlist.submit(0, one.queues[0], work(100 * us, 1, 7));
    one.runlist.submit(0, one.queues[1], work(100 * us, 1, 3));
    one.runlist.submit(0, one.queues[2], work(100 * us, 1, 5));
    expect<std::string>("the oldest of equals first", one.until(10 * ms), "s1@84 c2@234 c3@334 c1@434 ");

    Model two;
    const GroupId group = two.group(1 * ms);
    two.queues.push_back(two.runlist.add_queue(group, -5, 1));
    two.runlist.submit(0, two.queues[0], work(100 * us, 10));
    two.runlist.submit(384 * us, two.queues[1], work(50 * us));
    expect<std::string>("a more urgent one at the end of a wave", two.until(10 * ms), "s1@84 p1=3000 c2@484 c1@1184 ");

    Model boundary;
    boundary.group(1 * ms);
    boundary.queues.push_back(boundary.runlist.add_queue(1, -5, 1));
    boundary.runlist.submit(0, boundary.queues[0], work(100 * us, 10));
    boundary.runlist.submit(434 * us, boundary.queues[1], work(50 * us));
    expect<std::string>("at once where a wave ends", boundary.until(10 * ms), "s1@84 p1=3000 c2@484 c1@1184 ");

    Model same;
    same.group(1 * ms, 2);
    same.runlist.submit(0, same.queues[0], work(100 * us, 10, 5));
    same.runlist.submit(384 * us, same.queues[1], work(50 * us, 1, 1));
    expect<std::string>("an equal one never", same.until(10 * ms), "s1@84 c1@1134 c2@1184 ");
}

void check_turns() {
    Model two;
    two.group(1 * ms);
    two.group(1 * ms);
    for (const QueueId queue : two.queues) two.runlist.submit(0, queue, work(10 * ms));
    expect<std::string>("slices in turn", two.until(2'300 * us),
                        "s1@84 p1=950 e1@1084 s2@1168 p2=950 e2@2168 s1@2252 ");
    const std::string all = two.until(30 * ms);
    expect("and to the end", all.substr(all.rfind("s1")), std::string("s1@21764 c1@22314 e1@22314 s2@22398 c2@22948 "));

    Model three;
    for (const Time slice : {500 * us, 700 * us, 300 * us}) three.group(slice);
    for (const QueueId queue : three.queues) three.runlist.submit(0, queue, work(10 * ms));
    expect<std::string>("round robin, each its own slice", three.until(2'000 * us),
                        "s1@84 p1=450 e1@584 s2@668 p2=650 e2@1368 s3@1452 p3=250 e3@1752 s1@1836 ");

    for (const auto& [arrives, leaves] :
         {std::pair{500 * us, 1084 * us}, {1060 * us, 1105 * us}, {1084 * us, 1129 * us}, {1'100 * us, 2084 * us}}) {
        Model late;
        late.group(1 * ms);
        late.group(1 * ms);
        late.runlist.submit(0, late.queues[0], work(10 * ms));
        late.runlist.submit(arrives, late.queues[1], work(100 * us));
        const std::string text = late.until(3 * ms);
        expect("who comes later is noticed, at the end of a slice",
               text.find("e1@" + std::to_string(leaves / us)) != text.npos, true);
    }

    Model slow;
    slow.group(1 * ms);
    slow.group(1 * ms);
    for (const QueueId queue : slow.queues) slow.runlist.submit(0, queue, work(10 * ms));
    slow.until(300 * us);
    slow.runlist.set_slice(400 * us, 1, 2 * ms);
    expect<std::string>("a slice that is set holds", slow.until(2'200 * us), "s1@84 p1=1950 e1@2084 s2@2168 ");
    slow.runlist.expire_slice(2'500 * us);
    expect("and may be ended", slow.until(2'500 * us).ends_with("p2=282 e2@2500 "), true);
}

void check_controls() {
    Model off;
    off.group(1 * ms);
    off.runlist.submit(0, off.queues[0], work(1 * ms));
    off.runlist.set_enabled(334 * us, 1, kAll, false);
    off.until(700 * us);
    off.runlist.set_enabled(800 * us, 1, kAll, true);
    expect<std::string>("disabled and enabled", off.until(10 * ms), "s1@84 p1=2000 e1@334 s1@884 c1@1734 ");

    Model alone;
    alone.group(1 * ms);
    alone.runlist.submit(0, alone.queues[0], work(1 * ms));
    alone.runlist.preempt(334 * us, 1);
    expect<std::string>("preempted, alone", alone.until(10 * ms), "s1@84 p1=2000 e1@334 s1@454 c1@1304 ");

    Model urgent;
    urgent.group(1 * ms);
    urgent.group(1 * ms);
    urgent.runlist.set_realtime(0, 2, true);
    urgent.log.completed = [&](QueueId queue, Time at) {
        if (queue == 1) urgent.runlist.submit(at, queue, work(200 * us));
    };
    urgent.runlist.submit(0, urgent.queues[0], work(200 * us));
    urgent.runlist.submit(400 * us, urgent.queues[1], work(100 * us));
    expect<std::string>("a realtime group after two kernels", urgent.until(830 * us),
                        "s1@84 c1@334 c1@534 c1@734 e1@734 s2@818 ");

    Model cta;
    cta.group(1 * ms);
    cta.group(1 * ms);
    cta.runlist.set_cta_preemption(1, true);
    cta.runlist.submit(0, cta.queues[0], work(300 * us, 100));
    cta.runlist.submit(0, cta.queues[1], work(1 * ms));
    expect<std::string>("between blocks", cta.until(1'400 * us), "s1@84 p1=400 e1@1334 s2@1398 ");

    Model unseen;
    unseen.group(1 * ms);
    unseen.queues.push_back(unseen.runlist.add_queue(1, -1, 1));
    unseen.group(1 * ms);
    unseen.runlist.submit(0, unseen.queues[0], work(100 * us, 100));
    unseen.runlist.submit(0, unseen.queues[2], work(10 * ms));
    unseen.runlist.submit(600 * us, unseen.queues[1], work(50 * us));
    expect("a channel that becomes busy is seen at the next turn",
           unseen.until(3 * ms).find("c2@2352") != std::string::npos, true);

    Model gone;
    gone.group(1 * ms);
    gone.group(1 * ms);
    for (const QueueId queue : gone.queues) gone.runlist.submit(0, queue, work(10 * ms));
    gone.until(300 * us);
    gone.runlist.remove_group(500 * us, 1);
    expect<std::string>("a group that goes", gone.until(600 * us), "s1@84 e1@500 s2@584 ");

    Model runs;
    runs.group(1 * ms);
    runs.runlist.submit(0, runs.queues[0], work(100 * us));
    runs.runlist.release(150 * us, 1);
    expect<std::string>("what runs is not released", runs.until(1 * ms), "s1@84 c1@234 ");

    Model holds;
    holds.group(1 * ms, 2);
    holds.runlist.submit(0, holds.queues[0], {.wave = 1, .holds = true});
    holds.runlist.submit(0, holds.queues[1], work(100 * us));
    holds.until(1 * ms);
    holds.runlist.release(2 * ms, 1);
    expect<std::string>("what holds takes no processor", holds.until(3 * ms), "s1@84 c2@234 c1@2000 ");
}

void check_forecasts() {
    Model one;
    one.group(1 * ms);
    one.runlist.submit(0, one.queues[0], work(1 * ms));
    expect("not yet there", one.runlist.executing_from(1), kNever);
    expect("the earliest end, under way", one.runlist.earliest_completion(1), Time{84 * us + 50 * us + 1 * ms});
    one.until(100 * us);
    expect("executes after it is restored", one.runlist.executing_from(1), Time{134 * us});
    one.runlist.reach(334 * us);
    expect("the earliest end, there", one.runlist.earliest_completion(1), Time{1134 * us});
    one.runlist.reach(500 * ms);
    expect("busy while it executes", one.runlist.busy(1).busy(0), Time{1 * ms});
    expect("and so the GPU", one.runlist.busy().busy(0), Time{1 * ms});

    Model stopped;
    stopped.group(1 * ms);
    stopped.runlist.submit(0, 1, work(1 * ms));
    stopped.runlist.set_enabled(400 * us, 1, kAll, false);
    stopped.runlist.reach(900 * us);
    expect("no end while it is stopped", stopped.runlist.earliest_completion(1), kNever);
    stopped.runlist.set_enabled(5 * ms, 1, kAll, true);
    expect("the earliest end, when it goes on", stopped.runlist.earliest_completion(1), Time{5 * ms + 734 * us});

    Model waits;
    waits.group(1 * ms);
    waits.runlist.set_realtime(0, waits.group(1 * ms), true);
    waits.runlist.submit(0, 1, {.wave = 1, .holds = true});
    waits.until(200 * us);
    waits.runlist.submit(200 * us, 2, work(100 * us));
    expect("no end behind what holds", waits.runlist.earliest_completion(2), kNever);
}

void check_others() {
    CopyEngine engine;
    std::string done;
    const auto note = [&](const char* name) {
        return [&done, name](Time at) { done += name + std::to_string(at) + " "; };
    };
    engine.submit(10, 1, 100, note("a"));
    engine.submit(20, 2, 50, note("b"));
    expect("one transfer after the other", engine.next_event(), Time{110});
    engine.step();
    engine.step();
    expect("in order", done, std::string("a110 b160 "));
    engine.submit(200, 1, 100, note("c"));
    engine.submit(200, 2, 50, note("d"));
    engine.cancel(1);
    expect("one that began takes its time", engine.next_event(), Time{350});
    engine.cancel(2);
    expect("none is left", engine.next_event(), kNever);
    engine.submit(250, 3, 50, note("e"));
    expect("nor is the engine free before", engine.next_event(), Time{400});

    BusyHistory busy;
    busy.add(50 * ms, 300 * ms);
    expect("the first period", busy.busy(0), Time{150 * ms});
    expect("the second", busy.busy(1), Time{100 * ms});
    expect("none before", busy.busy(-1), Time{0});
    expect("none after", busy.busy(2), Time{0});
    expect("percent", BusyHistory::percent(101 * ms), 51U);
    expect("no more than all", BusyHistory::percent(900 * ms), 100U);
    expect("the last that ended", BusyHistory::last_period(400 * ms), std::int64_t{1});

    const auto shape = [](std::uint64_t blocks, std::uint32_t threads) {
        const timing::Occupancy one = timing::occupancy(blocks, threads);
        return std::vector<std::uint64_t>{one.waves, one.blocks_per_processor, one.warps_per_processor};
    };
    expect("a full wave", shape(1056, 256), {1, 8, 64});
    expect("one block more", shape(1057, 256), {2, 8, 64});
    expect("one block", shape(1, 256), {1, 1, 8});
    expect("small blocks", shape(132 * 33, 1), {2, 32, 32});
    expect("the largest", shape(132, 1024), {1, 1, 32});
}

}  // namespace

int main() {
    check_order();
    check_turns();
    check_controls();
    check_forecasts();
    check_others();
    return wrong != 0;
}
