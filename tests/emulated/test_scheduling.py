"""Shares, caps, deadlines and policies as a whole: a real daemon over real processes that compute and check."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from runlist.errors import RunlistError
from runlist.policies import builtin_policies
from runlist.workloads.process import WorkloadProcess, pause_all, run_all, start_all, stop_all
from tests.fixtures.daemon import (
    DEFAULT_SLICES,
    PATIENCE_S,
    Commands,
    Daemon,
    Slices,
    Worker,
    refusal,
    task_of,
    wait_for,
)
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

Start = Callable[..., Worker]
Jobs = Callable[[int], list[WorkloadProcess]]

WINDOW_S = 1.0
TOGETHER = 3


@pytest.fixture
def jobs(commands: Commands) -> Iterator[Jobs]:
    """So many equal batch jobs, at work."""
    with contextlib.ExitStack() as stack:

        def start(count: int) -> list[WorkloadProcess]:
            first = stack.enter_context(WorkloadProcess("batch", environment=commands.environment))
            words = ("--rounds", str(first.ready["rounds"]))
            others = (WorkloadProcess("batch", *words, environment=commands.environment) for _ in range(count - 1))
            started = [first, *(stack.enter_context(other) for other in others)]
            run_all(started)
            return started

        yield start


def rates(processes: Sequence[WorkloadProcess], seconds: float = WINDOW_S) -> list[float]:
    """Kernels a second of each, measured together."""
    start_all(processes)
    time.sleep(seconds)
    return [window["kernels"] / window["seconds"] for window in stop_all(processes)]


def wait_for_rates(
    processes: Sequence[WorkloadProcess], good: Callable[..., bool], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Measure until the rates are good: in the newest window, or in the newest few together. A change of settings takes
    a while to show, and on a busy machine one window says little.
    """

    def measure() -> list[float]:
        meanwhile()
        return rates(processes)

    wait_for_windows(measure, good)


def wait_for_windows(measure: Callable[[], list[float]], good: Callable[..., bool]) -> None:
    """As `wait_for_rates`, of anything that is measured in windows."""
    windows: list[list[float]] = []
    deadline = time.monotonic() + 2 * PATIENCE_S
    while True:
        windows.append(measure())
        last = windows[-TOGETHER:]
        together = [sum(of_one) / len(last) for of_one in zip(*last, strict=True)]
        if good(*windows[-1]) or (len(last) == TOGETHER and good(*together)):
            return
        assert time.monotonic() < deadline, windows


def free_rate(job: WorkloadProcess) -> float:
    """The rate of a job that nothing keeps from running, over as long as the rates that are compared with it."""
    return sum(rates([job])[0] for _ in range(TOGETHER)) / TOGETHER


def assert_correct(processes: Sequence[WorkloadProcess]) -> None:
    pause_all(processes)
    assert all(process.quit()["correct"] for process in processes)


# -- weights and caps ------------------------------------------------------------------------------


def test_weights_are_shares_and_can_be_changed(commands: Commands, daemon: Daemon, jobs: Jobs) -> None:
    heavy, light = pair = jobs(2)
    daemon.client.attach(heavy.pid, "batch", settings={"weight": "300"})
    daemon.client.attach(light.pid, "batch", settings={"weight": "100"})
    wait_for_rates(pair, lambda first, second: 2 < first / second < 4.5)

    def as_the_log_has_it() -> list[float]:
        time.sleep(WINDOW_S)
        tasks = {task["pid"]: task for task in commands.json("ps")}
        assert {task["usage_source"] for task in tasks.values()} == {"switch log"}
        assert all(task["memory_bytes"] > 0 and task["turns_per_s"] > 1 for task in tasks.values())
        return [tasks[job.pid]["share_1s"] for job in pair]

    wait_for_windows(as_the_log_has_it, lambda first, second: 2 < first / second < 4.5)
    assert "switch log" in commands.ok("ps")
    daemon.client.set(heavy.pid, {"weight": "100"})
    daemon.client.set(light.pid, {"weight": "300"})
    wait_for_rates(pair, lambda first, second: 2 < second / first < 4.5)
    assert_correct(pair)


def test_tasks_of_a_group_share_as_one(daemon: Daemon, jobs: Jobs) -> None:
    alone, *team = three = jobs(3)
    daemon.client.attach(alone.pid, "batch")
    for member in team:
        daemon.client.attach(member.pid, "batch", settings={"group": "team"})
    wait_for_rates(three, lambda first, *others: 0.7 < first / sum(others) < 1.4)
    assert_correct(three)


def test_a_cap_holds_and_can_be_changed(daemon: Daemon, jobs: Jobs) -> None:
    """On one that is alone: nothing else keeps it from more, so it is suspended and resumed again and again."""
    (job,) = jobs(1)
    daemon.client.attach(job.pid, "batch")
    free = free_rate(job)
    (task,) = daemon.client.set(job.pid, {"cap": "30"})
    assert task.cap_percent == 30
    wait_for(lambda: not task_of(daemon, job.pid).enabled, "the cap to be reached")
    wait_for(lambda: task_of(daemon, job.pid).enabled, "the next period")
    wait_for(lambda: task_of(daemon, job.pid).why.startswith("cap 30 %: waits"), "why it waits")
    wait_for_rates([job], lambda capped: 0.2 < capped / free < 0.4)
    daemon.client.set(job.pid, {"cap": "60000 100000"})
    wait_for_rates([job], lambda capped: 0.48 < capped / free < 0.72)
    daemon.client.set(job.pid, {"cap": "max"})
    wait_for_rates([job], lambda again: again / free > 0.8)
    assert_correct([job])


def test_what_a_process_did_before_does_not_count_against_its_cap(daemon: Daemon, worker: Start, jobs: Jobs) -> None:
    """Its use is in the log since somebody else was managed on this GPU."""
    other = worker()
    other.do("pause")
    daemon.client.attach(other.pid, "batch")
    (job,) = jobs(1)
    rates([job], 4.0)
    begun = time.monotonic()
    daemon.client.attach(job.pid, "batch", settings={"cap": "10"})
    wait_for_rates([job], lambda rate: rate > 0)
    assert time.monotonic() - begun < 20  # it was not held off for its past: that would take forty
    assert_correct([job])


def test_what_a_capped_task_cannot_use_goes_to_the_others(daemon: Daemon, jobs: Jobs) -> None:
    capped, free = pair = jobs(2)
    daemon.client.attach(capped.pid, "batch", settings={"cap": "20", "weight": "1000"})
    daemon.client.attach(free.pid, "batch")
    wait_for_rates(pair, lambda first, second: 2.5 < second / first < 7)
    assert_correct(pair)


# -- deadlines, segments, targets ------------------------------------------------------------------


def test_run_says_that_its_deadline_does_not_fit(commands: Commands, daemon: Daemon, worker: Start) -> None:
    """When its first program has a context, and so a GPU; only the daemon's log and `ps` said so."""
    first = worker()
    daemon.client.attach(first.pid, None, settings={"deadline": "15ms/20ms"})
    words = ("--deadline", "10ms/20ms", "--", sys.executable, "-m", "runlist.workloads.batch", "--rounds", "20000")
    process = commands.start("run", *words, stdin=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith("runlist: process ")
    assert " is not managed: 10 ms in every 20 ms is 50 % of the GPU, and 25 % of the 100 % for deadlines is" in said
    assert process.communicate("quit\n", timeout=60)[1] == ""
    assert process.returncode == 0
    assert first.quit()


def test_deadlines_that_do_not_fit_are_refused(commands: Commands, daemon: Daemon, worker: Start) -> None:
    first, second = worker(), worker()
    (task,) = daemon.client.attach(first.pid, None, settings={"deadline": "15ms/20ms"})
    assert (task.task_class, task.budget_us, task.period_us) == ("deadline", 15_000, 20_000)
    line = commands.fails(1, "attach", str(second.pid), "--deadline", "10ms/20ms")
    assert "10 ms in every 20 ms is 50 % of the GPU, and 25 % of the 100 % for deadlines is left" in line
    assert f"{first.pid} (" in line
    assert [task.pid for task in daemon.client.ps()] == [first.pid]
    daemon.client.attach(second.pid, None, settings={"deadline": "5ms/20ms"})
    assert "is left" in commands.fails(1, "set", str(second.pid), "deadline=6ms/20ms")
    too_short = refusal(lambda: daemon.client.set(second.pid, {"deadline": "1ms/2ms"}))
    assert "a deadline's period is 10 ms to 10 s, not 2 ms" in too_short
    assert task_of(daemon, second.pid).budget_us == 5_000  # nothing changed
    daemon.client.set(first.pid, {"class": "normal"})
    without = refusal(lambda: daemon.client.set(first.pid, {"class": "deadline"}))
    assert "class=deadline takes a budget" in without
    daemon.client.set(second.pid, {"deadline": "15ms/20ms"})
    for tenant in (first, second):
        tenant.wait_for_progress()
        assert tenant.quit()


def test_a_segment_stops_the_others_until_it_ends(daemon: Daemon, worker: Start) -> None:
    daemon.client.use_policy("deadline", {"max_segment_ms": "9000"})
    one, other = tenants = [worker(), worker()]
    for tenant in tenants:
        daemon.client.attach(tenant.pid)
    one.do("segment 1")
    wait_for(lambda: task_of(daemon, one.pid).segment == 1)
    other.assert_stopped()
    one.wait_for_progress()
    assert "waits for a segment" in task_of(daemon, other.pid).why
    one.do("segment end")
    one.do("segment 1")  # again, for as long as one counts
    other.do("segment 2")  # more urgent
    one.assert_stopped()
    other.wait_for_progress()
    other.do("segment end")
    other.assert_stopped(0.2)
    one.do("segment end")
    for tenant in tenants:
        tenant.wait_for_progress()
        assert task_of(daemon, tenant.pid).segment is None
        assert tenant.quit()


def test_one_that_dies_in_its_segment_releases_the_rest(daemon: Daemon, worker: Start) -> None:
    daemon.client.use_policy("deadline", {"max_segment_ms": "9000"})
    one, other = worker(), worker()
    for tenant in (one, other):
        daemon.client.attach(tenant.pid)
    one.do("segment 1")
    other.assert_stopped(0.2)
    one.kill()
    other.wait_for_progress()
    assert other.quit()


def test_a_batch_task_stops_nobody_with_segments(daemon: Daemon, worker: Start) -> None:
    one, other = worker(), worker()
    for tenant in (one, other):
        daemon.client.attach(tenant.pid, "batch")
    one.do("segment 1")
    other.wait_for_progress()
    assert other.quit()


def test_a_program_knows_whether_its_segment_is_in_force(daemon: Daemon, worker: Start) -> None:
    daemon.client.use_policy("deadline", {"max_segment_ms": "9000"})
    one, other = worker(), worker()
    assert not one.do("segment 1")["in_force"]  # not managed
    one.do("segment end")
    daemon.client.attach(one.pid)
    daemon.client.attach(other.pid)
    one.do("segment 1")
    wait_for(lambda: one.do("force")["in_force"])
    other.do("segment 2")
    wait_for(lambda: other.do("force")["in_force"])
    wait_for(lambda: not one.do("force")["in_force"])
    other.do("segment end")
    wait_for(lambda: one.do("force")["in_force"])
    for change, back in (({"class": "batch"}, {"class": "normal"}), ({"cap": "1"}, {"cap": "max"})):
        one.do("segment end")
        one.do("segment 1")  # again, for as long as one counts
        wait_for(lambda: one.do("force")["in_force"])
        daemon.client.set(one.pid, change)
        wait_for(lambda: not one.do("force")["in_force"], str(change))
        daemon.client.set(one.pid, back)
        wait_for(lambda: one.do("force")["in_force"], str(back))
    daemon.client.suspend(one.pid)
    wait_for(lambda: not one.do("force")["in_force"])
    daemon.client.use_policy("deadline", {"max_segment_ms": "50"})
    daemon.client.resume(one.pid)
    one.do("segment end")
    one.do("segment 1")
    wait_for(lambda: not one.do("force")["in_force"])  # it was too long
    for tenant in (one, other):
        assert tenant.quit()


@pytest.mark.parametrize("task_class", ["normal", "latency"])
def test_successive_segments_are_all_in_force(daemon: Daemon, worker: Start, task_class: str) -> None:
    one, other = worker(), worker()
    daemon.client.attach(one.pid, task_class)
    daemon.client.attach(other.pid, task_class)
    for _ in range(6):
        one.do("segment 1")
        wait_for(lambda: one.do("force")["in_force"])  # a busy machine may answer late
        assert not task_of(daemon, other.pid).enabled
        one.do("segment end")
        other.wait_for_progress()
        time.sleep(0.3)  # the pause was taken for a segment once, so that every other one had no effect
    for tenant in (one, other):
        assert tenant.quit()


def test_a_target_takes_from_the_background_what_it_needs(daemon: Daemon, worker: Start, jobs: Jobs) -> None:
    (job,) = jobs(1)
    service = worker()
    service.do("pause")
    daemon.client.attach(service.pid, "latency", settings={"p99": "5ms"})
    daemon.client.attach(job.pid, "batch")
    free = free_rate(job)

    def late_requests() -> None:
        for _ in range(20):
            service.do("report 50000")

    def told() -> bool:
        late_requests()
        return "p99 50 ms of 5 ms: background at" in task_of(daemon, job.pid).why

    wait_for(told)
    assert task_of(daemon, service.pid).p99_us == pytest.approx(50_000)
    wait_for(lambda: not task_of(daemon, job.pid).enabled, "the background to be held back")
    wait_for_rates([job], lambda held_back: held_back < 0.5 * free, late_requests)
    daemon.client.set(service.pid, {"p99": "none"})
    wait_for_rates([job], lambda again: again > 0.8 * free)
    assert_correct([job])


def test_requests_that_queue_stop_the_background_before_one_is_late(daemon: Daemon, worker: Start, jobs: Jobs) -> None:
    (job,) = jobs(1)
    service = worker()
    service.do("pause")
    daemon.client.attach(service.pid, "latency", settings={"p99": "2s"})
    daemon.client.attach(job.pid, "batch")
    for _ in range(30):
        service.do("report 100000")

    def queues() -> bool:
        service.do("report 900000")
        task = task_of(daemon, job.pid)
        return not task.enabled and "stopped for a moment" in task.why

    wait_for(queues)
    service.do("report 100000")
    wait_for(lambda: task_of(daemon, job.pid).enabled)
    assert "background at 100 %" in task_of(daemon, job.pid).why  # no smaller part
    assert_correct([job])


# -- policies --------------------------------------------------------------------------------------


def test_policies_are_switched_under_load_and_results_are_right(
    daemon: Daemon, worker: Start, jobs: Jobs, tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from runlist.model import Share\nfrom runlist.policies import Decision, Policy\n"
        "class POLICY(Policy):\n    summary = 'each a moment'\n"
        "    def decide(self, tasks, now):\n"
        "        turn = int(now * 100) % len(tasks)\n"
        "        shares = {task.key: Share(3000, index == turn) for index, task in enumerate(tasks)}\n"
        "        return Decision(shares, 0.01)\n"
    )
    three = jobs(3)
    for job, settings in zip(three, ({"weight": "300"}, {"cap": "40"}, {}), strict=True):
        daemon.client.attach(job.pid, "batch", settings=settings)
    service = worker()
    daemon.client.attach(service.pid, "latency")
    service.do("pause")
    switches: list[tuple[str, dict[str, str]]] = [
        ("fair", {}), ("cap", {}), (str(own), {}), ("deadline", {"bound": "0.9"}), ("slo", {"step": "0.1"}),
        ("priority", {"quantum_ms": "10"}),
    ]  # fmt: skip
    for name, options in switches * 3:
        assert daemon.client.use_policy(name, options).policy == name
        time.sleep(0.1)  # under load: nothing is waited for
        with pytest.raises(RunlistError, match="would stop each other"):
            daemon.client.use_policy("gpreempt", {})
    assert daemon.client.status().troubles == []
    service.do("go")
    service.wait_for_progress()
    assert service.quit()
    wait_for_rates(three, lambda *each: min(each) > 0)
    assert_correct(three)


def test_every_policy_can_be_used(commands: Commands, daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch", settings={"cap": "50"})
    for name in builtin_policies():
        assert daemon.client.use_policy(name, {}).policy == name
        assert [task.policy for task in daemon.client.ps()] == [name]
        tenant.wait_for_progress()
    assert commands.json("policy", "use", "cap")["policy"] == "cap"
    assert "policy: cap" in commands.ok("policy", "show")
    tenant.wait_for_progress()
    assert tenant.quit()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("while True: pass", "took longer"),
        ("raise SystemExit", "SystemExit"),
        ("return Decision({task.key: Share(until='soon') for task in tasks})", "no share"),
    ],
)
def test_a_policy_that_stalls_or_leaves_is_dropped_and_said(
    daemon: Daemon, worker: Start, tmp_path: Path, body: str, what: str
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from runlist.model import Share\nfrom runlist.policies import Decision, Policy\n"
        "class POLICY(Policy):\n    summary = 'bad'\n"
        "    def decide(self, tasks, now):\n"
        f"        if any(task.weight == 7 for task in tasks):\n            {body}\n"
        "        return Decision({task.key: Share(4000) for task in tasks})\n"
    )
    tenant = worker()
    daemon.client.attach(tenant.pid, "normal")
    daemon.client.use_policy(str(bad), {})
    assert task_of(daemon, tenant.pid).timeslice_us == 4_000
    daemon.client.set(tenant.pid, {"weight": "7"})
    (task,) = daemon.client.ps()
    assert (task.policy, task.timeslice_us) == ("priority", 20_000)
    (trouble,) = daemon.client.status().troubles
    assert "bad.py was dropped for the default one" in trouble
    assert what in trouble
    assert trouble in daemon.log.read_text()
    tenant.wait_for_progress()
    assert tenant.quit()


# -- faults ----------------------------------------------------------------------------------------


def test_a_daemon_killed_while_it_throttles_leaves_nobody_suspended(
    daemon: Daemon, worker: Start, slices: Slices
) -> None:
    capped, waiting, holder = tenants = [worker() for _ in range(3)]
    daemon.client.attach(capped.pid, "normal", settings={"cap": "10"})
    daemon.client.attach(waiting.pid, "batch")
    daemon.client.attach(holder.pid, "normal")
    holder.do("segment 1")
    wait_for(lambda: sum(not task.enabled for task in daemon.client.ps()) >= 2, "two to be held off")
    daemon.kill()
    for tenant in tenants:
        wait_for(lambda: slices.of(tenant.pid) == DEFAULT_SLICES, f"the slices of {tenant.pid}")  # noqa: B023
        tenant.wait_for_progress()
        assert tenant.quit()


def test_a_task_that_ends_while_it_is_held_off_is_forgotten(daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch", settings={"cap": "1"})
    wait_for(lambda: not task_of(daemon, tenant.pid).enabled, "the cap")
    tenant.kill()
    wait_for(lambda: not daemon.client.ps())
    assert daemon.client.status().troubles == []
