"""The background goes off at the first launch of a request without the daemon's doing, and nothing leaves it off."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from runlist.workloads.process import WorkloadProcess
from tests.conftest import ON_NVIDIA
from tests.emulated.test_giving_way import ENDLESS, KEPT_OFF, STEPPED, use
from tests.fixtures.actuator import (
    IDLE_FILES,
    actuators,
    armed,
    files,
    program,
    watched,
    without_futex_waitv,
)
from tests.fixtures.daemon import (
    DEFAULT_SLICES,
    PATIENCE_S,
    Commands,
    Daemon,
    Slices,
    Worker,
    running,
    task_of,
    wait_for,
)

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="its programs are made for the emulated GPU's pace")

Start = Callable[..., Worker]
Service = Callable[..., WorkloadProcess]
SOON_S = 10.0


@pytest.fixture
def batch(worker: Start, daemon: Daemon) -> Worker:
    """A batch job at work, attached, which gives way by request."""
    use(daemon, "request")
    job = worker()
    daemon.client.attach(job.pid, "batch")
    return job


@pytest.fixture
def service(commands: Commands, daemon: Daemon) -> Iterator[Service]:
    """Starts latency programs that wait until they are told to work."""
    with ExitStack() as stack:

        def start(*words: str, by_request: bool = True) -> WorkloadProcess:
            process = program(commands, daemon, *(words or ENDLESS))
            stack.callback(process.kill)
            return watched(process) if by_request else process

        yield start


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_the_first_launch_suspends_the_background_although_the_daemon_is_stopped(
    daemon: Daemon, batch: Worker, service: Service
) -> None:
    latency = service()
    acting = armed(daemon)
    batch.wait_for_progress()
    before = task_of(daemon, batch.pid).suspensions
    with stopped(daemon.pid):
        latency.run()
        batch.assert_stopped()

    def off() -> bool:
        """At the same moment: it has the GPU for 5 ms after every 100 ms that requests take."""
        seen = task_of(daemon, batch.pid)
        return seen.why == KEPT_OFF and not seen.enabled and seen.suspensions > before

    wait_for(off, "the policy to have heard of it")
    latency.kill()
    batch.wait_for_progress()
    assert task_of(daemon, batch.pid).enabled
    assert batch.quit()
    wait_for(lambda: files(acting) == IDLE_FILES, "it to let go of all files")
    assert actuators(daemon.pid) == [acting]


def test_it_is_started_with_the_first_arm_and_ends_with_the_daemon(
    daemon: Daemon, worker: Start, service: Service
) -> None:
    job = worker()
    daemon.client.attach(job.pid, "batch")
    use(daemon, "slice")
    service(by_request=False)
    time.sleep(0.3)
    assert actuators(daemon.pid) == []
    use(daemon, "request")
    acting = armed(daemon)
    use(daemon, "slice")
    wait_for(lambda: files(acting) == IDLE_FILES)
    daemon.process.terminate()
    assert daemon.process.wait(PATIENCE_S) == 0
    wait_for(lambda: not running(acting), "it to end")
    job.wait_for_progress()


def test_request_after_request_is_seen(daemon: Daemon, batch: Worker, service: Service) -> None:
    latency = service(*STEPPED)
    armed(daemon)
    latency.run()
    wait_for(lambda: not task_of(daemon, batch.pid).enabled)
    latency.start()
    before = task_of(daemon, batch.pid).suspensions
    time.sleep(2)
    requests = len(latency.stop()["latency_us"])
    took = task_of(daemon, batch.pid).suspensions - before
    assert took >= requests - 1
    latency.pause()
    batch.wait_for_progress()
    assert batch.quit()


@pytest.mark.parametrize("keeper", ["lives", "dead"])
def test_when_the_daemon_is_killed_after_that_the_background_is_resumed(
    daemon: Daemon, batch: Worker, service: Service, slices: Slices, keeper: str
) -> None:
    """By the keeper and by the actuator, whichever is left."""
    latency = service()
    acting, keeping = armed(daemon), daemon.keeper
    with stopped(daemon.pid):
        latency.run()
        batch.assert_stopped()
        if keeper == "dead":
            os.kill(keeping, signal.SIGKILL)
        latency.kill()
        batch.assert_stopped()
        before, began = batch.count, time.monotonic()
        daemon.kill()
        wait_for(lambda: batch.count > before + 1)
        took_s = time.monotonic() - began
    assert took_s < SOON_S
    if keeper == "lives":
        wait_for(lambda: slices.of(batch.pid) == DEFAULT_SLICES)
    wait_for(lambda: not running(acting), "it to end")
    assert batch.quit()


def test_when_it_fires_after_the_daemon_was_killed_nothing_is_left_off(
    daemon: Daemon, batch: Worker, service: Service
) -> None:
    """The keeper is done by then."""
    latency = service()
    acting = armed(daemon)
    with stopped(acting):
        keeper = daemon.keeper
        daemon.kill()
        wait_for(lambda: not running(keeper), "the keeper to end")
        latency.run()
    wait_for(lambda: not running(acting), "it to end")
    latency.kill()
    batch.wait_for_progress()


def test_when_it_is_killed_after_it_fired_the_daemon_takes_over(
    daemon: Daemon, batch: Worker, service: Service
) -> None:
    latency = service()
    acting = armed(daemon)
    with stopped(daemon.pid):
        latency.run()
        batch.assert_stopped()
        os.kill(acting, signal.SIGKILL)
        wait_for(lambda: not running(acting))
    wait_for(lambda: task_of(daemon, batch.pid).why == KEPT_OFF)
    latency.kill()
    batch.wait_for_progress()
    service()
    assert armed(daemon) != acting


def test_killed_at_any_moment_it_leaves_nothing_off(daemon: Daemon, batch: Worker, service: Service) -> None:
    latency = service("--steps", "3", "--gap-us", "500", "--period-ms", "20", "--rounds", "1000")
    latency.run()
    moments = random.Random(4)
    killed, ends = set(), time.monotonic() + 4
    while time.monotonic() < ends:
        for pid in actuators(daemon.pid):
            time.sleep(moments.uniform(0, 0.05))
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.01)
    assert len(killed) >= 2
    latency.pause()
    wait_for(lambda: task_of(daemon, batch.pid).enabled)
    batch.wait_for_progress(20)
    assert "the actuator ended" in daemon.log.read_text()
    latency.run()
    wait_for(lambda: set(actuators(daemon.pid)) - killed, "another one, after a while")
    latency.kill()
    batch.wait_for_progress(20)
    assert batch.quit()


@pytest.mark.parametrize("how", ["released", "suspended", "ended"])
def test_what_was_let_go_of_is_not_suspended_any_more(
    daemon: Daemon, batch: Worker, service: Service, how: str
) -> None:
    latency = service()
    acting = armed(daemon)
    if how == "released":
        daemon.client.detach(batch.pid)
    elif how == "suspended":
        daemon.client.suspend(batch.pid)
    else:
        batch.process.kill()
    wait_for(lambda: files(acting) == IDLE_FILES, "it to let go of all files")
    if how == "suspended":
        daemon.client.resume(batch.pid)
        armed(daemon)
        daemon.client.detach(batch.pid)
    if how != "ended":
        with stopped(daemon.pid):
            latency.run()
            batch.wait_for_progress()
        assert batch.quit()


def test_one_that_does_not_answer_is_killed(daemon: Daemon, batch: Worker, service: Service) -> None:
    latency = service()
    acting = armed(daemon)
    with stopped(acting):
        began = time.monotonic()
        daemon.client.detach(batch.pid)
        assert time.monotonic() - began < SOON_S
        wait_for(lambda: not running(acting), "it to be killed")
        latency.run()
        batch.wait_for_progress()
    assert "does not answer" in daemon.log.read_text()


def test_a_context_that_comes_while_it_is_armed_goes_off_with_the_others(
    daemon: Daemon, batch: Worker, service: Service
) -> None:
    latency = service()
    groups, acting = task_of(daemon, batch.pid).groups, armed(daemon)
    before = files(acting)
    batch.do("context")
    wait_for(lambda: task_of(daemon, batch.pid).groups > groups and files(acting) > before, "both contexts to be armed")
    with stopped(daemon.pid):
        latency.run()
        batch.assert_stopped()
    latency.kill()
    batch.wait_for_progress()
    assert batch.quit()


def test_all_that_is_enabled_goes_off_for_any_of_several_programs(
    daemon: Daemon, batch: Worker, worker: Start, service: Service
) -> None:
    parked = worker()
    parked.do("pause")
    daemon.client.attach(parked.pid, "batch")
    both = {batch.pid, parked.pid}
    programs = [service(), service()]
    for latency in programs:
        acting = armed(daemon)
        wait_for(lambda acting=acting: files(acting) >= IDLE_FILES + 3)
        with stopped(daemon.pid):
            latency.run()
            batch.assert_stopped()
        wait_for(lambda: both == {task.pid for task in daemon.client.ps() if task.why == KEPT_OFF}, "both to be off")
        latency.kill()
        batch.wait_for_progress()


def test_a_kernel_that_cannot_wait_for_several_words_is_told_of_once(
    commands: Commands, start_daemon: Callable[..., Daemon], worker: Start
) -> None:
    commands.options["preexec_fn"] = without_futex_waitv
    daemon = start_daemon()
    del commands.options["preexec_fn"]
    use(daemon, "request")
    job = worker()
    daemon.client.attach(job.pid, "batch")
    with program(commands, daemon, *STEPPED) as latency:
        latency.run()
        wait_for(lambda: task_of(daemon, job.pid).why == KEPT_OFF, "the policy to suspend it")
        wait_for(lambda: task_of(daemon, job.pid).enabled)
        wait_for(lambda: task_of(daemon, job.pid).why == KEPT_OFF)
    assert actuators(daemon.pid) == []
    assert daemon.log.read_text().count("a little later") == 1
    job.wait_for_progress()
