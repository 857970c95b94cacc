"""Whole commands on real processes: what each does, what it prints, and every exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.errors import NoTargetError
from runlist.model import MAX_TIMESLICE_US
from runlist.planes.nvidia.slices import SLICES
from runlist.policies.parts.slices import BASE_US
from runlist.proc.cgroup import cgroup_of
from runlist.units import duration
from runlist.views.structs import Measured
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import DEFAULT_SLICES, Commands, Daemon, Slices, Worker, running, task_of, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

Start = Callable[..., Worker]

GONE = 2**22 + 1


MEASURED = {"memory_bytes", *Measured.__struct_fields__}
"""What `ps` says of a task that changes by itself."""

# -- attach, ps, detach ----------------------------------------------------------------------------


def test_attach_starts_a_daemon_manages_and_detach_puts_back(commands: Commands, worker: Start, slices: Slices) -> None:
    tenant = worker()
    original = slices.of(tenant.pid)
    (task,) = commands.json("attach", str(tenant.pid), "--class", "batch")
    assert (task["pid"], task["task_class"], task["timeslice_us"], task["enabled"]) == (tenant.pid, "batch", 1, True)
    assert (task["groups"], task["channels"], task["policy"], task["corrections"]) == (4, 20, "priority", 0)
    assert task["gpu"].startswith("GPU-")
    assert "tests.fixtures.worker" in task["command"]
    assert task["command_line"] == Path(f"/proc/{tenant.pid}/cmdline").read_text().replace("\0", " ").strip()
    assert task["cgroup"] == cgroup_of(tenant.pid)[0]
    assert task["user"] == os.getuid()
    assert 0 < task["discovery_ms"] <= task["attach_ms"]
    assert slices.of(tenant.pid) == [1] * 4
    tenant.wait_for_progress()
    (seen,) = commands.json("ps")
    assert seen.keys() == task.keys()
    assert {key for key in seen if seen[key] != task[key]} <= MEASURED
    assert f"{tenant.pid} " in commands.ok("ps")

    assert commands.ok("detach", str(tenant.pid)) == ""
    assert slices.of(tenant.pid) == original
    assert commands.json("ps") == []
    assert commands.json("daemon", "--stop")["private"]
    tenant.wait_for_progress()
    assert tenant.quit()


def test_what_is_counted_of_a_gpu_stays_when_its_tasks_end(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices
) -> None:
    tenants = [worker(), worker()]
    for tenant in tenants:
        commands.ok("attach", str(tenant.pid), "--class", "batch")
    commands.ok("suspend", str(tenants[0].pid))
    slices.set(tenants[1].pid, 5000)
    wait_for(lambda: task_of(daemon, tenants[1].pid).slices_put_back)
    tasks = commands.json("ps")
    assert all(task["gpu_seconds_held"] > 0 and task["switches"] for task in tasks)
    assert all(task["gpu_seconds_worked"] <= task["gpu_seconds_held"] for task in tasks)
    assert next(task["suspensions"] for task in tasks if task["pid"] == tenants[0].pid) > 0
    (before,) = commands.json("ps", "--gpus")
    assert (before["gpu"], before["tasks"], before["slices_put_back"]) == (tasks[0]["gpu"], 2, 1)
    assert before["memory_size_bytes"] > before["memory_used_bytes"] > 0
    commands.ok("release", "--all")
    (after,) = commands.json("daemon", "--status")["gpus"]
    assert after["tasks"] == 0
    for name in ("gpu_seconds_held", "gpu_seconds_worked", "switches", "suspensions", "slices_put_back"):
        assert after[name] >= before[name] >= max(task[name] for task in tasks) > 0, name
    assert "priority" in commands.ok("ps", "--gpus")


def test_attaching_again_changes_the_class(commands: Commands, daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant = worker()
    commands.ok("attach", str(tenant.pid), "--class", "batch")
    (task,) = commands.json("attach", str(tenant.pid), "--class", "latency")
    assert task["task_class"] == "latency"
    assert slices.of(tenant.pid) == [1_000_000] * 4
    assert len(daemon.client.ps()) == 1


def test_a_process_without_a_context_is_no_target_unless_waited_for(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices
) -> None:
    tenant = worker(idle=True)
    line = commands.fails(4, "attach", str(tenant.pid))
    assert "no GPU context" in line
    assert "--wait" in line
    commands.fails(4, "detach", str(tenant.pid))  # nothing was left behind
    waiting = subprocess.Popen(
        [sys.executable, "-m", "runlist.cli", "attach", str(tenant.pid), "--wait", "--class", "batch", "--json"],
        env=commands.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: _is_managed(daemon, tenant.pid))
    assert waiting.poll() is None
    tenant.do("open")
    (task,) = json.loads(waiting.communicate(timeout=60)[0])
    assert (task["pid"], task["task_class"], waiting.returncode) == (tenant.pid, "batch", 0)
    assert slices.of(tenant.pid) == [1] * 4
    tenant.wait_for_progress()
    assert tenant.quit()


def _is_managed(daemon: Daemon, pid: int) -> bool:
    with contextlib.suppress(NoTargetError):
        daemon.client.set(pid, {})
        return True
    return False


@pytest.mark.parametrize("how", ["ctrl-c", "its end"])
def test_waiting_for_a_process_ends(commands: Commands, daemon: Daemon, worker: Start, how: str) -> None:
    tenant = worker(idle=True)
    words = [sys.executable, "-m", "runlist.cli", "attach", str(tenant.pid), "--wait"]
    waiting = subprocess.Popen(words, env=commands.environment, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: _is_managed(daemon, tenant.pid))
    if how == "ctrl-c":
        time.sleep(0.5)
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(60) == 130
        assert not _is_managed(daemon, tenant.pid)
    else:
        tenant.kill()
        line = waiting.communicate(timeout=60)[1]
        assert (waiting.returncode, len(line.splitlines())) == (4, 1)
        assert str(tenant.pid) in line


def test_release_means_the_processes_that_are_named(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices
) -> None:
    one, other, stranger = worker(), worker(), worker()
    for tenant in (one, other):
        daemon.client.attach(tenant.pid, "batch")
    slices.set(stranger.pid, 1)
    idle = subprocess.Popen(["sleep", "1000"])
    try:
        for words in (["release"], ["release", str(one.pid), "--all"], ["release", "x"]):
            commands.fails(2, *words)
        for mistyped in (GONE, idle.pid):
            assert str(mistyped) in commands.fails(4, "release", str(one.pid), str(mistyped))
            assert len(daemon.client.ps()) == 2  # nothing was released
    finally:
        idle.kill()
        idle.wait()
    assert commands.ok("release", str(one.pid)) == ""
    assert [task.pid for task in daemon.client.ps()] == [other.pid]
    assert slices.of(one.pid) == DEFAULT_SLICES
    notes = commands.json("release", str(stranger.pid))["notes"]  # which no daemon knows
    assert len(notes) == 4
    assert slices.of(stranger.pid) == DEFAULT_SLICES
    assert [task.pid for task in daemon.client.ps()] == [other.pid]
    assert commands.json("release", "--all") == {"notes": []}
    assert daemon.client.ps() == []
    assert slices.of(other.pid) == DEFAULT_SLICES


def test_a_thread_is_no_process(commands: Commands, daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    thread = next(name for name in os.listdir(f"/proc/{tenant.pid}/task") if int(name) != tenant.pid)
    assert "thread" in commands.fails(4, "attach", thread)


@pytest.mark.parametrize(
    "words",
    [
        ["detach", "1"], ["suspend", "1"], ["resume", "1"], ["set", "1", "class=batch"], ["policy", "use", "gpreempt"],
        ["daemon", "--status"], ["daemon", "--stop"],
    ],
)  # fmt: skip
def test_without_a_daemon_there_is_no_target(commands: Commands, words: list[str]) -> None:
    assert "no daemon runs" in commands.fails(4, *words, "--json")


def test_without_a_daemon_nothing_is_managed(commands: Commands) -> None:
    assert commands.ok("ps") == "no tasks\n"
    assert commands.json("ps") == []
    nobody = "no daemon runs: name the processes that are to be put back (`runlist release PID`)"
    assert commands.json("release", "--all") == {"notes": [nobody]}
    assert not any(policy["in_use"] for policy in commands.json("policy", "list"))
    assert not commands.socket.exists()


# -- set -------------------------------------------------------------------------------------------


def test_settings_take_effect_and_bad_ones_change_nothing(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices
) -> None:
    tenant = worker()
    pid = str(tenant.pid)
    commands.ok("attach", pid, "--class", "batch")
    (task,) = commands.json("set", pid, "timeslice=3000", "class=normal")
    assert (task["timeslice_us"], task["task_class"]) == (3000, "normal")
    assert slices.of(tenant.pid) == [3000] * 4
    for words, what in (
        (["class=fast"], "take deadline, latency, normal, batch"),
        (["timeslice=0"], f"1 µs to {duration(MAX_TIMESLICE_US)}"),
        (["timeslice=10%"], "whole microseconds"),
        (["timeslice=7000", "nonsense=1"], "no setting 'nonsense'"),
        (["timeslice=7000", "class="], "key=value"),
    ):
        assert what in commands.fails(2, "set", pid, *words)
    assert slices.of(tenant.pid) == [3000] * 4
    (task,) = commands.json("set", pid, "timeslice=auto", "class=normal")
    assert task["timeslice_us"] == 20_000
    commands.ok("set", pid, "class=batch")
    assert slices.of(tenant.pid) == [1] * 4
    tenant.wait_for_progress()
    assert tenant.quit()


# -- suspend, resume -------------------------------------------------------------------------------


def test_suspend_stops_and_resume_goes_on_with_right_numbers(commands: Commands, daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    commands.ok("attach", str(tenant.pid))
    for _ in range(3):
        (task,) = commands.json("suspend", str(tenant.pid))
        assert (task["suspended"], task["enabled"]) == (True, False)
        tenant.assert_stopped()
        assert "suspended" in commands.ok("ps")
        (task,) = commands.json("resume", str(tenant.pid))
        assert (task["suspended"], task["enabled"]) == (False, True)
        tenant.wait_for_progress()
    assert tenant.quit()


def test_suspending_twice_and_resuming_what_runs_is_fine(daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid)
    daemon.client.resume(tenant.pid)
    daemon.client.suspend(tenant.pid)
    daemon.client.suspend(tenant.pid)
    tenant.assert_stopped()
    daemon.client.resume(tenant.pid)
    tenant.wait_for_progress()


def test_detaching_or_releasing_what_is_suspended_lets_it_run(daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant = worker()
    for let_go in (lambda: daemon.client.detach(tenant.pid), daemon.client.release):
        daemon.client.attach(tenant.pid, "batch")
        daemon.client.suspend(tenant.pid)
        tenant.assert_stopped(0.2)
        assert let_go() == []
        tenant.wait_for_progress()
        assert slices.of(tenant.pid) == DEFAULT_SLICES
    assert tenant.quit()


# -- several tasks ---------------------------------------------------------------------------------


def test_classes_share_a_gpu(daemon: Daemon, worker: Start, slices: Slices) -> None:
    latency, *batch = [worker() for _ in range(3)]
    daemon.client.attach(latency.pid, "latency")
    for one in batch:
        daemon.client.attach(one.pid, "batch")
    tasks = {task.pid: task for task in daemon.client.ps()}
    assert tasks[latency.pid].timeslice_us == 1_000_000
    assert [tasks[one.pid].timeslice_us for one in batch if tasks[one.pid].enabled] == [1]
    latency.do("close")  # else it never pauses, and the background starves: that is its class
    for one in batch:
        one.wait_for_progress()
    daemon.client.release()
    for one in batch:
        assert slices.of(one.pid) == DEFAULT_SLICES
        one.wait_for_progress()
        assert one.quit()


def test_letting_one_go_gives_the_others_their_due(daemon: Daemon, worker: Start, slices: Slices) -> None:
    """Detaching the latency task leaves a normal one alone: it is no background any more."""
    latency, normal = worker(), worker()
    daemon.client.attach(latency.pid, "latency")
    daemon.client.attach(normal.pid, "normal")
    assert slices.compute(normal.pid) == 1
    daemon.client.detach(latency.pid)
    assert slices.compute(normal.pid) == 20_000
    assert slices.of(latency.pid) == DEFAULT_SLICES


def test_two_contexts_are_one_task_and_a_later_one_joins(daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant = worker()
    tenant.do("context")
    (task,) = daemon.client.attach(tenant.pid, "batch")
    assert (task.groups, task.channels) == (8, 40)
    assert slices.of(tenant.pid) == [SLICES.tiny_us] * 8
    tenant.do("context")
    wait_for(lambda: daemon.client.ps()[0].groups == 12, "the third context")
    assert slices.of(tenant.pid) == [SLICES.tiny_us] * 12
    daemon.client.suspend(tenant.pid)
    tenant.assert_stopped()
    daemon.client.resume(tenant.pid)
    daemon.client.detach(tenant.pid)
    assert slices.of(tenant.pid) == DEFAULT_SLICES * 3
    tenant.wait_for_progress()
    assert tenant.quit()


def test_a_context_made_while_suspended_is_suspended_too(daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid)
    daemon.client.suspend(tenant.pid)
    tenant.assert_stopped(0.1)
    tenant.send("context")  # its first kernel must not finish, so there is no answer yet
    time.sleep(1)  # on a real GPU even making it waits
    tenant.assert_stopped()
    daemon.client.resume(tenant.pid)
    tenant.read()
    wait_for(lambda: daemon.client.ps()[0].groups == 8, "the second context")
    tenant.wait_for_progress()
    assert tenant.quit()


def test_children_are_managed_with_their_parent(daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    child = tenant.do("spawn")["pid"]
    wait_for(lambda: len(daemon.client.ps()) == 2, "the child to be noticed")
    wait_for(lambda: slices.of(child) == [BASE_US] * 4, "its slices")  # CUDA may set its own a moment after we did
    assert slices.of(tenant.pid) == [BASE_US] * 4  # they share as one job, half each
    assert {task.task_class for task in daemon.client.ps()} == {"batch"}
    daemon.client.detach(child)  # by itself; its parent stays
    assert slices.of(child) == DEFAULT_SLICES
    assert [task.pid for task in daemon.client.ps()] == [tenant.pid]
    daemon.client.detach(tenant.pid)
    os.kill(child, signal.SIGKILL)


# -- daemon, doctor, release -----------------------------------------------------------------------


def test_the_daemon_says_what_it_is(commands: Commands, daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid)
    status = commands.json("daemon", "--status")
    assert (status["pid"], status["tasks"], status["private"]) == (daemon.pid, 1, False)
    assert running(status["keeper_pid"])
    assert f"process {daemon.pid}" in commands.ok("daemon", "--status")


@pytest.mark.parametrize("how", ["stop", "SIGTERM", "SIGINT"])
def test_a_daemon_that_ends_puts_everything_back(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices, how: str
) -> None:
    tenants = [worker(), worker()]
    for tenant in tenants:
        daemon.client.attach(tenant.pid, "batch")
    keeper = daemon.keeper
    daemon.client.suspend(tenants[0].pid)
    if how == "stop":
        commands.ok("daemon", "--stop")
    else:
        daemon.process.send_signal(signal.Signals[how])
    assert daemon.process.wait(60) == 0
    for tenant in tenants:
        assert slices.of(tenant.pid) == DEFAULT_SLICES
        tenant.wait_for_progress()
        assert tenant.quit()
    wait_for(lambda: not running(keeper), "the keeper to end")
    assert not commands.socket.exists()


def test_doctor(commands: Commands, daemon: Daemon) -> None:
    report = commands.json("doctor")
    states = {finding["what"]: finding["state"] for finding in report["findings"]}
    assert report["exit_code"] == 0
    assert "fail" not in states.values()
    assert states["device"] == states["borrowing"] == states["lending"] == states["GPUs"] == "ok"
    details = {finding["what"]: finding["detail"] for finding in report["findings"]}
    assert f"process {daemon.pid}" in details["daemon"]
    assert len(commands.ok("doctor").splitlines()) == len(report["findings"])


@pytest.mark.skipif(ON_NVIDIA, reason="is about an emulated GPU that is not there")
def test_a_device_that_is_not_there_is_not_supported(commands: Commands, short_path: Path) -> None:
    commands.environment["RUNLIST_EMULATED_GPU"] = str(short_path / "nothing")
    del commands.environment["RUNLIST_SOCKET"]
    done = commands.run("doctor", "--json")
    assert done.returncode == 5
    states = {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert states["device"]["state"] == "fail"
    assert "no emulated GPU runs in" in states["device"]["detail"]
    for words in (["attach", str(os.getpid())], ["run", "--", "true"]):
        assert "no emulated GPU runs in" in commands.fails(5, *words)
    assert commands.ok("ps") == "no tasks\n"
    assert not (short_path / "nothing").exists()


def test_release_of_a_process_that_nobody_manages(commands: Commands, worker: Start, slices: Slices) -> None:
    tenant = worker()
    slices.set(tenant.pid, 1)
    (context,) = slices.contexts(tenant.pid)
    context.suspend()
    tenant.assert_stopped(0.2)
    notes = commands.json("release", str(tenant.pid))["notes"]
    assert len(notes) == 4
    assert all(str(tenant.pid) in note for note in notes)
    assert slices.of(tenant.pid) == DEFAULT_SLICES
    tenant.wait_for_progress()
    assert commands.ok("release", str(tenant.pid)) == ""
    assert tenant.quit()


# -- output that cannot be written -----------------------------------------------------------------


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_went_away_is_left_quietly(commands: Commands, unbuffered: str) -> None:
    commands.environment["PYTHONUNBUFFERED"] = unbuffered
    reader, writer = os.pipe()
    os.close(reader)
    done = commands.run("policy", "list", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(commands: Commands, unbuffered: str) -> None:
    commands.environment["PYTHONUNBUFFERED"] = unbuffered
    with open("/dev/full", "w") as full:
        assert "No space left" in commands.fails(1, "policy", "list", stdout=full)


def test_an_emulated_gpu_named_by_a_relative_path(commands: Commands, worker: Start) -> None:
    """A private daemon runs in another directory than its caller."""
    if ON_NVIDIA:
        pytest.skip("is about the emulated GPU's directory")
    gpu = Path(commands.environment["RUNLIST_EMULATED_GPU"])
    tenant = worker()
    for name in (gpu.name, f"../{gpu.parent.name}/{gpu.name}"):
        commands.environment["RUNLIST_EMULATED_GPU"] = name
        (task,) = json.loads(commands.ok("attach", str(tenant.pid), "--json", cwd=gpu.parent))
        assert task["pid"] == tenant.pid
        commands.ok("daemon", "--stop", cwd=gpu.parent)


def test_a_path_too_long_for_a_socket_is_one_line(commands: Commands, tmp_path: Path) -> None:
    commands.environment["RUNLIST_SOCKET"] = str(tmp_path / ("x" * 120) / "daemon.sock")
    assert "too long" in commands.fails(1, "ps")
    assert "too long" in commands.fails(1, "attach", str(os.getpid()))
