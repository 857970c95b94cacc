"""How the background gives way to real programs that pause: by request and by slices, and whatever ends meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from runlist.client import Client
from runlist.daemon.tasks.managed import GAVE_WAY
from runlist.top.feed import Feed
from runlist.top.rows import gpu_bars
from runlist.views.structs import TaskView
from runlist.workloads.process import WorkloadProcess
from tests.conftest import ON_NVIDIA, Tenant
from tests.fixtures.daemon import DEFAULT_SLICES, Commands, Daemon, Slices, running, task_of, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="its programs are made for the emulated GPU's pace")

STEPPED = ("--steps", "100", "--gap-us", "500", "--period-ms", "400", "--rounds", "1000")
"""Requests of a tenth of a second and more, with a synchronisation after each kernel."""
ENDLESS = ("--steps", "100000", "--gap-us", "500", "--rounds", "1000")
"""One request that outlasts any test."""
SPINNER = ("--steps", "1000000", "--gap-us", "1", "--kernel-us", "1")
GPU_BOUND = ("--steps", "20", "--gap-us", "100", "--period-ms", "300", "--closed", "--rounds", "20000")
HOST_BOUND = ("--steps", "1000", "--host-us", "500", "--period-ms", "1", "--rounds", "200")
KEPT_OFF = "kept off by a request"

Service = Callable[..., WorkloadProcess]


@pytest.fixture
def service(commands: Commands, daemon: Daemon) -> Iterator[Service]:
    """Starts latency programs by `runlist run`, at work."""
    with ExitStack() as stack:

        def start(*words: str, task_class: str = "latency") -> WorkloadProcess:
            run = [sys.executable, "-m", "runlist.cli", "run", "--class", task_class, "--"]
            program = [sys.executable, "-m", "runlist.workloads.latency", *words]
            process = WorkloadProcess("latency", environment=commands.environment, words=[*run, *program])
            stack.callback(process.kill)
            wait_for(lambda: any(task.pid == process.ready["pid"] for task in daemon.client.ps()), "the task")
            process.run()
            return process

        yield start


def use(daemon: Daemon, way: str) -> None:
    daemon.client.use_policy("priority", {"give_way": way})


def is_off(task: TaskView) -> bool:
    return not task.enabled and task.why == KEPT_OFF


def look(daemon: Daemon, pid: int, seconds: float) -> list[TaskView]:
    """A task as it was every few milliseconds."""
    seen, ends = [], time.monotonic() + seconds
    while time.monotonic() < ends:
        seen.append(task_of(daemon, pid))
        time.sleep(0.003)
    return seen


def off_in_a_request(daemon: Daemon, batch: WorkloadProcess) -> None:
    wait_for(lambda: is_off(task_of(daemon, batch.pid)), "the batch job to be off for a request")


def works(batch: WorkloadProcess) -> None:
    """It gets something done."""
    batch.start()
    wait_for(lambda: batch.measure(0.2)["kernels"] > 0, "the batch job to work")


def test_the_background_is_off_for_requests_and_on_between(
    daemon: Daemon, commands: Commands, batch: WorkloadProcess, service: Service
) -> None:
    commands.ok("policy", "use", "priority", "--option", "give_way=request")
    program = service(*STEPPED)
    off_in_a_request(daemon, batch)
    seen = look(daemon, batch.pid, 3)
    off = [task for task in seen if not task.enabled]
    assert off
    assert len(off) < len(seen)
    assert KEPT_OFF in {task.why for task in off} <= {KEPT_OFF, GAVE_WAY}
    assert {task.timeslice_us for task in seen} == {1}
    program.pause()
    # The daemon may hear of the last request a moment later.
    wait_for(lambda: all(task.enabled for task in look(daemon, batch.pid, 0.5)), "the batch job to stay on")
    assert batch.quit()["correct"]


def test_beside_a_request_that_never_ends_the_background_has_its_breaks_and_it_is_named(
    daemon: Daemon, batch: WorkloadProcess, service: Service
) -> None:
    use(daemon, "request")
    program = service(*SPINNER)
    wait_for(lambda: task_of(daemon, batch.pid).timeslice_us == 2_000, "slices for the breaks")
    assert "its request does not end" in task_of(daemon, program.ready["pid"]).why
    works(batch)


def test_slices_of_the_background_are_long_where_that_was_asked_for(
    daemon: Daemon, commands: Commands, batch: WorkloadProcess, service: Service, slices: Slices
) -> None:
    commands.ok("policy", "use", "priority", "--option", "give_way=slice")
    service(*STEPPED)
    wait_for(lambda: (task_of(daemon, batch.pid).timeslice_us or 0) > 1, "a longer slice")
    assert slices.compute(batch.pid) > 1
    assert "slices of" in task_of(daemon, batch.pid).why


def test_a_bad_way_is_one_line(commands: Commands, daemon: Daemon) -> None:
    line = commands.fails(2, "policy", "use", "priority", "--option", "give_way=politely")
    assert "give_way" in line
    assert all(word in line for word in ("switch", "request", "slice", "auto"))
    assert daemon.client.status().policy_options == {}


def test_the_way_is_chosen_by_what_the_program_waits_for(
    daemon: Daemon, batch: WorkloadProcess, service: Service
) -> None:
    program = service("--steps", "100", "--gap-us", "100", "--period-ms", "100", "--rounds", "20000")
    wait_for(lambda: "off for each request" in task_of(daemon, program.ready["pid"]).why, "the way by request")
    program.kill()
    wait_for(lambda: len(daemon.client.ps()) == 1)
    program = service(*HOST_BOUND)
    wait_for(lambda: "slices of" in task_of(daemon, program.ready["pid"]).why, "the way by slices")


def test_a_program_that_was_attached_has_no_requests(
    daemon: Daemon, batch: WorkloadProcess, tenant: Tenant, commands: Commands
) -> None:
    use(daemon, "request")
    program = tenant("latency", *ENDLESS, environment=commands.environment)
    program.run()
    daemon.client.attach(program.pid, "latency")
    assert all(task.enabled for task in look(daemon, batch.pid, 1))


def advice(commands: Commands, pid: int) -> dict[str, str]:
    """What `runlist doctor PID` says, by what it is about."""
    (task,) = commands.json("doctor", str(pid))["tasks"]
    assert task["observed"]["pid"] == pid
    return {finding["what"]: f"{finding['state']} {finding['detail']}" for finding in task["findings"]}


def test_people_see_the_way_in_force_and_what_fits(
    daemon: Daemon, batch: WorkloadProcess, service: Service, commands: Commands
) -> None:
    def shown() -> str:
        (gpu,) = gpu_bars(feed.look(), 80, 24)
        return gpu

    feed = Feed(lambda: Client.open(patience_s=5))
    use(daemon, "request")
    program = service(*GPU_BOUND)
    pid = program.ready["pid"]
    wait_for(lambda: task_of(daemon, pid).request_us is not None, "a request that ended")
    said = advice(commands, pid)
    assert said["work"].startswith("ok GPU-bound requests of about ")
    assert said["library"].startswith("ok ")
    assert said["way"].startswith("ok the background is off for each of its requests, switches cost ")
    assert "request, switches " in shown()
    assert "request, switches " in commands.ok("ps", "--gpus")
    background = advice(commands, batch.pid)
    assert background["class"].startswith("ok its class is batch")
    assert "way" not in background
    assert task_of(daemon, batch.pid).submissions is None
    task = task_of(daemon, pid)
    assert task.submissions
    assert task.seconds_waited
    program.kill()

    use(daemon, "slice")
    program = service(*HOST_BOUND)
    pid = program.ready["pid"]
    wait_for(lambda: "slice " in shown(), "slices on the screen")
    wait_for(lambda: advice(commands, pid)["work"].startswith("ok host-bound: "), "it to be known")
    said = advice(commands, pid)
    assert " the background has slices of " in said["way"]
    feed.close()


def test_advice_for_programs_that_do_not_fit(
    daemon: Daemon, batch: WorkloadProcess, tenant: Tenant, commands: Commands
) -> None:
    busy = tenant("batch", "--kernel-ms", "200", environment=commands.environment)
    busy.run()
    daemon.client.attach(busy.pid, "latency")
    wait_for(lambda: task_of(daemon, busy.pid).share_1s > 0.97, "it to have the GPU")
    said = advice(commands, busy.pid)
    assert said["work"].startswith("warn it never pauses")
    assert f"`runlist set {busy.pid} cap=80`" in said["work"]
    assert said["library"].startswith("warn not under the library")
    commands.ok("set", str(busy.pid), "class=normal")
    assert f"`runlist set {busy.pid} class=latency`" in advice(commands, busy.pid)["class"]
    commands.ok("suspend", str(busy.pid))
    assert list(advice(commands, busy.pid)) == ["state"]
    commands.ok("detach", str(busy.pid))
    assert f"process {busy.pid} is not managed" in commands.fails(4, "doctor", str(busy.pid))


def kill_program(daemon: Daemon, program: WorkloadProcess) -> None:
    os.kill(program.ready["pid"], signal.SIGKILL)


def pause_program(daemon: Daemon, program: WorkloadProcess) -> None:
    os.kill(program.ready["pid"], signal.SIGSTOP)  # between two steps or not


def release_program(daemon: Daemon, program: WorkloadProcess) -> None:
    daemon.client.detach(program.ready["pid"])


def suspend_program(daemon: Daemon, program: WorkloadProcess) -> None:
    daemon.client.suspend(program.ready["pid"])


def make_it_batch(daemon: Daemon, program: WorkloadProcess) -> None:
    daemon.client.set(program.ready["pid"], {"class": "batch"})
    daemon.client.suspend(program.ready["pid"])


def other_way(daemon: Daemon, program: WorkloadProcess) -> None:
    use(daemon, "slice")


def other_policy(daemon: Daemon, program: WorkloadProcess) -> None:
    daemon.client.use_policy("fair", {})


@pytest.mark.parametrize(
    "ends",
    [kill_program, release_program, suspend_program, make_it_batch, other_way, other_policy],
    ids=lambda function: function.__name__,
)
def test_what_ends_a_request_brings_the_background_back(
    daemon: Daemon,
    batch: WorkloadProcess,
    service: Service,
    ends: Callable[[Daemon, WorkloadProcess], None],
) -> None:
    use(daemon, "request")
    program = service(*ENDLESS)
    off_in_a_request(daemon, batch)
    ends(daemon, program)
    wait_for(lambda: task_of(daemon, batch.pid).enabled)
    assert not any(is_off(task) for task in look(daemon, batch.pid, 0.3))
    works(batch)


def test_a_program_that_was_suspended_in_a_request_is_not_taken_for_busy(
    daemon: Daemon, batch: WorkloadProcess, service: Service
) -> None:
    use(daemon, "request")
    program = service(*ENDLESS)
    pid = program.ready["pid"]
    off_in_a_request(daemon, batch)
    os.kill(pid, signal.SIGSTOP)
    daemon.client.suspend(pid)
    daemon.client.resume(pid)
    assert not any(is_off(task) for task in look(daemon, batch.pid, 0.5)[10:])
    os.kill(pid, signal.SIGCONT)
    off_in_a_request(daemon, batch)


def test_when_the_daemon_is_killed_in_a_request_the_background_is_resumed(
    daemon: Daemon, batch: WorkloadProcess, service: Service, slices: Slices
) -> None:
    use(daemon, "request")
    program = service(*ENDLESS)
    off_in_a_request(daemon, batch)
    keeper = daemon.keeper
    daemon.kill()
    wait_for(lambda: slices.of(batch.pid) == DEFAULT_SLICES)
    works(batch)
    wait_for(lambda: not running(keeper), "the keeper to end")
    assert running(program.ready["pid"])


def test_when_the_keeper_is_killed_in_a_request_requests_go_on(
    daemon: Daemon, batch: WorkloadProcess, service: Service, slices: Slices
) -> None:
    use(daemon, "request")
    service(*ENDLESS)
    off_in_a_request(daemon, batch)
    keeper = daemon.keeper
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: daemon.keeper != keeper and running(daemon.keeper), "another keeper")
    off_in_a_request(daemon, batch)
    daemon.kill()
    wait_for(lambda: slices.of(batch.pid) == DEFAULT_SLICES)
    works(batch)


def test_what_the_user_suspends_in_a_request_stays_so(daemon: Daemon, batch: WorkloadProcess, service: Service) -> None:
    use(daemon, "request")
    program = service(*ENDLESS)
    off_in_a_request(daemon, batch)
    daemon.client.suspend(batch.pid)
    assert all(task.suspended and not task.enabled for task in look(daemon, batch.pid, 0.3))
    daemon.client.resume(batch.pid)
    off_in_a_request(daemon, batch)
    program.kill()
    wait_for(lambda: task_of(daemon, batch.pid).enabled)
    works(batch)


FORKS_AND_EXECS = """
import os, sys, time
from runlist.workloads.gpu import Gpu
from runlist.workloads.accumulator import Accumulator
child = 0
gpu = Gpu(0)
work = Accumulator(gpu, blocks=gpu.sm_count)
first = sys.argv[1] == "first"
if first and (child := os.fork()) == 0:
    time.sleep(100)
print(os.getpid(), child, flush=True)
ends = time.monotonic() + 1.5
while not first or time.monotonic() < ends:
    work.launch(1000)
    work.synchronize()
    time.sleep(0.0003)
os.kill(child, 9)
os.waitpid(child, 0)
os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
"""


def test_a_program_that_forks_and_becomes_another_one(
    daemon: Daemon, batch: WorkloadProcess, commands: Commands, tmp_path: Path
) -> None:
    use(daemon, "request")
    file = tmp_path / "program.py"
    file.write_text(FORKS_AND_EXECS)
    process = commands.start("run", "--class", "latency", "--", sys.executable, str(file), "first")
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[0])
    off_in_a_request(daemon, batch)
    assert process.stdout.readline() == f"{pid} 0\n"
    wait_for(lambda: any(task.pid == pid for task in daemon.client.ps()))
    off_in_a_request(daemon, batch)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: task_of(daemon, batch.pid).enabled)
    works(batch)
