"""`runlist.manage`: processes that have themselves managed for a while, with a real daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import runlist
from runlist.errors import NoTargetError
from runlist.settings.table import override
from runlist.views.structs import TaskView
from tests.fixtures.daemon import (
    DEFAULT_SLICES,
    NOBODY,
    PATIENCE_S,
    ROOT,
    Commands,
    Daemon,
    Slices,
    Worker,
    group_of_nobody,
    needs_root,
    task_of,
    wait_for,
)  # fmt: skip
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

Start = Callable[..., Worker]


def managed(daemon: Daemon, worker: Worker) -> list[TaskView]:
    return [task for task in daemon.client.ps() if task.pid == worker.pid]


def of(daemon: Daemon, worker: Worker) -> tuple[str, int, float | None]:
    task = task_of(daemon, worker.pid)
    return task.task_class, task.weight, task.cap_percent


def test_a_process_is_managed_for_a_while_and_put_back(daemon: Daemon, worker: Start, slices: Slices) -> None:
    one = worker()
    one.do("manage class=batch weight=50")
    assert of(daemon, one) == ("batch", 50, None)
    wait_for(lambda: slices.compute(one.pid) != DEFAULT_SLICES[0])
    one.do("unmanage")
    assert managed(daemon, one) == []
    assert slices.of(one.pid) == DEFAULT_SLICES
    assert one.quit()


def test_one_that_has_no_context_yet_has_its_settings_from_the_first_on(daemon: Daemon, worker: Start) -> None:
    one = worker(idle=True)
    one.do("manage weight=25")
    assert managed(daemon, one) == []
    one.do("open")
    wait_for(lambda: managed(daemon, one))
    assert of(daemon, one) == ("normal", 25, None)
    one.do("manage weight=75")
    assert of(daemon, one) == ("normal", 75, None)
    one.do("unmanage")
    one.do("unmanage")
    assert managed(daemon, one) == []


def test_inner_uses_win_and_take_with_them_what_they_brought(daemon: Daemon, worker: Start) -> None:
    one = worker()
    one.do("manage class=batch weight=50")
    one.do("manage weight=70 cap=30")
    assert of(daemon, one) == ("batch", 70, 30)
    one.do("manage deadline=2ms/20ms")
    assert task_of(daemon, one.pid).budget_us == 2000
    one.do("unmanage")
    assert of(daemon, one) == ("batch", 70, 30)
    one.do("unmanage")
    assert of(daemon, one) == ("batch", 50, None)


def test_what_somebody_attached_is_put_back_setting_by_setting(daemon: Daemon, worker: Start) -> None:
    one = worker()
    asked = {"cap": "40ms/80ms", "burst": "10ms", "weight": 30, "timeslice": "3ms", "group": "night"}
    (before,) = daemon.client.attach(one.pid, "latency", settings=asked)
    one.do("manage class=batch weight=50 cap=20 timeslice=auto group=none p99=none")
    assert of(daemon, one) == ("batch", 50, 20)
    daemon.client.set(one.pid, {"weight": 77})  # from here on it is that person's
    one.do("unmanage")
    after = task_of(daemon, one.pid)
    named = ("task_class", "cap_percent", "group", "timeslice_set_us", "target_p99_us")
    assert [getattr(after, name) for name in named] == [getattr(before, name) for name in named]
    assert after.weight == 77
    daemon.client.set(one.pid, {"burst": "10ms"})  # only with a quota of 10 ms and more: 40 ms are there again


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_and_goes_the_rest_is_in_force(daemon: Daemon, worker: Start, seed: int) -> None:
    """Against a model: the settings before, and on top of them those of the uses that go on."""
    random = Random(seed)
    one = worker()
    before = {"class": "latency", "weight": "30", "cap": "40", "deadline": "none", "p99": "none"}
    daemon.client.attach(one.pid, None, settings={"class": "latency", "weight": 30, "cap": 40})
    choices = [
        {"class": "batch"}, {"class": "normal", "weight": "50"}, {"weight": "70"}, {"cap": "20"}, {"cap": "max"},
        {"deadline": "2ms/20ms"}, {"p99": "5ms", "class": "latency"}, {"weight": "80", "cap": "25"},
    ]  # fmt: skip
    uses: list[dict[str, str]] = []
    for _ in range(30):
        if uses and random.random() < 0.45:
            one.do(f"unmanage {(at := random.randrange(len(uses)))}")
            del uses[at]
        else:
            uses.append(random.choice(choices))
            words = " ".join(f"{key}={value}" for key, value in uses[-1].items())
            if "refused" in one.do(f"manage {words}"):
                uses.pop()
        wanted = before
        for use in uses:
            wanted = override(wanted, use)
        task = task_of(daemon, one.pid)
        deadline = wanted.get("deadline", "none") != "none"
        assert task.task_class == ("deadline" if deadline else wanted["class"]), uses
        assert (task.budget_us, task.weight) == (2000 if deadline else None, int(wanted["weight"])), uses
        assert task.cap_percent == (None if wanted["cap"] == "max" else float(wanted["cap"])), uses
        assert task.target_p99_us == (None if wanted["p99"] == "none" else 5000), uses
    while uses:
        one.do("unmanage")
        uses.pop()
    assert of(daemon, one) == ("latency", 30, 40)


def test_a_control_of_the_driver_is_put_back(daemon: Daemon, worker: Start) -> None:
    one = worker()
    one.do("manage interleave=high")
    one.do("manage interleave=medium weight=50")
    assert task_of(daemon, one.pid).controls == {"interleave": "medium"}
    one.do("unmanage")
    assert task_of(daemon, one.pid).controls == {"interleave": "high"}
    one.do("unmanage")
    daemon.client.attach(one.pid, None, settings={"interleave": "medium"})
    one.do("manage interleave=high")
    one.do("unmanage")
    assert task_of(daemon, one.pid).controls == {"interleave": "medium"}


def test_another_program_has_nothing_of_it(daemon: Daemon, worker: Start) -> None:
    """The block cannot end any more, nor be meant for what the process became."""
    one = worker()
    one.do("manage weight=50 class=batch")
    one.send("exec")
    wait_for(lambda: not managed(daemon, one))
    assert one.process.poll() is None


def test_the_deadline_that_it_had_comes_back(daemon: Daemon, worker: Start) -> None:
    one = worker()
    daemon.client.attach(one.pid, None, settings={"deadline": "3ms/30ms"})
    one.do("manage class=batch")
    assert task_of(daemon, one.pid).budget_us is None
    one.do("unmanage")
    task = task_of(daemon, one.pid)
    assert (task.task_class, task.budget_us, task.period_us) == ("deadline", 3000, 30000)


def test_under_run_it_is_as_the_command_was_asked_for(commands: Commands, daemon: Daemon, tmp_path: Path) -> None:
    runlist = [sys.executable, "-m", "runlist.cli", "run", "--class", "batch", "--weight", "40", "--memory", "8G", "--"]
    (tmp_path / "w").mkdir()
    one = Worker(commands.environment, tmp_path / "w", idle=True, before=runlist)
    try:
        pid = one.do("who")["pid"]
        one.do("manage weight=60 memory=4G")
        one.do("open")
        wait_for(daemon.client.ps)
        task = task_of(daemon, pid)
        assert (task.task_class, task.weight, task.memory_limit_bytes) == ("batch", 60, 4 << 30)
        one.do("unmanage")
        task = task_of(daemon, pid)
        assert (task.task_class, task.weight, task.memory_limit_bytes) == ("batch", 40, 8 << 30)
        one.do("quit")
    finally:
        one.kill()


def test_rules_are_in_force_again_afterwards(
    start_daemon: Callable[..., Daemon], worker: Start, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ncommand = "*fixtures.worker*"\nset = { class = "batch", cap = "50%" }\n')
    daemon = start_daemon("--rules", str(rules))
    one = worker()
    wait_for(lambda: managed(daemon, one))
    one.do("manage class=latency weight=20")
    assert of(daemon, one) == ("latency", 20, 50)
    one.do("unmanage")
    assert of(daemon, one) == ("batch", 100, 50)
    two = worker(idle=True)
    two.do("manage class=latency")
    two.do("open")
    wait_for(lambda: managed(daemon, two))
    assert of(daemon, two) == ("latency", 100, 50)
    two.do("unmanage")
    wait_for(lambda: managed(daemon, two))  # nobody names it now, so the rules do
    assert of(daemon, two) == ("batch", 100, 50)


def test_it_goes_back_to_what_the_rules_say_by_then(
    start_daemon: Callable[..., Daemon], worker: Start, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"

    def say(settings: str) -> None:
        rules.write_text(f'[[rule]]\ncommand = "*fixtures.worker*"\nset = {{ {settings} }}\n')

    say('class = "batch", weight = 30')
    daemon = start_daemon("--rules", str(rules))
    one = worker()
    wait_for(lambda: managed(daemon, one))
    one.do("manage class=latency")
    say('class = "normal", weight = 40')
    daemon.client.reload_rules()
    wait_for(lambda: of(daemon, one) == ("latency", 40, None))
    daemon.client.set(one.pid, {"weight": 7})
    one.do("unmanage")
    assert of(daemon, one) == ("normal", 7, None)
    one.do("manage weight=9 class=batch")
    daemon.client.set(one.pid, {"weight": 8})
    say('class = "latency", weight = 50')
    daemon.client.reload_rules()
    assert of(daemon, one) == ("batch", 8, None)
    one.do("unmanage")
    assert of(daemon, one) == ("latency", 8, None)


def test_memory_without_the_library_is_refused_and_changes_nothing(daemon: Daemon, worker: Start) -> None:
    one = worker()
    assert "runlist run --memory" in one.do("manage weight=10 memory=1G")["refused"]
    assert managed(daemon, one) == []
    one.do("manage weight=20")
    assert "runlist run --memory" in one.do("manage weight=10 memory=1G")["refused"]
    assert of(daemon, one) == ("normal", 20, None)


def test_memory_with_the_library_alone(commands: Commands, daemon: Daemon, worker: Start) -> None:
    """Before the first context, and without `runlist run`: the region goes along with the request."""
    environment = {**commands.environment, "LD_PRELOAD": str(runlist.library()), "RUNLIST_MEMORY": "100G"}
    one = worker(idle=True, environment=environment)
    one.do("manage memory=4M")
    assert "OUT_OF_MEMORY" in _error(one, "open")
    one.do("unmanage")
    one.do("open")
    one.do("manage memory=512M")
    assert task_of(daemon, one.pid).memory_limit_bytes == 512 << 20


def test_a_region_of_one_above_is_nobodys_own(commands: Commands, daemon: Daemon) -> None:
    """As where a whole tree was started with the library by hand: its limit is not one process' to change."""
    environment = {**commands.environment, "LD_PRELOAD": str(runlist.library()), "RUNLIST_MEMORY": "100G"}
    script = "import os, runlist\nwith runlist.manage(memory='1G'): pass"
    shell = ["sh", "-c", f"{sys.executable} -c '{script.replace(chr(39), chr(34))}'; true"]
    done = subprocess.run(shell, env=environment, cwd=ROOT, text=True, capture_output=True, timeout=60)
    assert "its memory cannot be limited from outside" in done.stderr


@needs_root
def test_another_user_manages_itself(
    start_daemon: Callable[..., Daemon], worker: Start, commands: Commands, slices: Slices
) -> None:
    commands.folder.chmod(0o711)
    daemon = start_daemon("--group", group_of_nobody())
    one = worker()
    one.do("manage weight=20")  # so that all is imported which that user may not read
    one.do("unmanage")
    one.do(f"setuid {NOBODY}")
    one.do("manage class=batch weight=50")
    assert (*of(daemon, one), task_of(daemon, one.pid).user) == ("batch", 50, None, NOBODY)
    one.do("unmanage")
    assert managed(daemon, one) == []
    assert slices.of(one.pid) == DEFAULT_SLICES


def _error(worker: Worker, command: str) -> str:
    worker.send(command)
    assert worker.process.stdout is not None
    return worker.process.stdout.readline()


def test_a_daemon_that_dies_meanwhile(start_daemon: Callable[..., Daemon], worker: Start, slices: Slices) -> None:
    first = start_daemon()
    one = worker()
    one.do("manage weight=50")
    first.kill()
    one.do("unmanage")  # the keeper has put it back, or does now
    wait_for(lambda: slices.of(one.pid) == DEFAULT_SLICES)
    second = start_daemon()
    one.do("manage weight=60")
    assert of(second, one) == ("normal", 60, None)
    second.process.terminate()
    second.process.wait()
    third = start_daemon()
    one.do("manage cap=30")  # all that is in force goes to the new one
    assert of(third, one) == ("normal", 60, 30)
    one.do("unmanage")
    one.do("unmanage")
    assert managed(third, one) == []


def test_the_end_of_the_process_is_the_end(daemon: Daemon, worker: Start) -> None:
    one = worker()
    one.do("manage weight=50")
    one.kill()
    wait_for(lambda: not daemon.client.ps())


def test_whoever_leaves_leaves_no_child_out_of_the_rules(commands: Commands, daemon: Daemon, worker: Start) -> None:
    one = worker(idle=True, environment={**commands.environment, "KIND": "web"})
    rule = commands.socket.with_name("rules.d") / "a.toml"
    rule.touch(0o600)
    rule.write_text('[[rule]]\nenvironment = { KIND = "web" }\nset.cap = 30\n')
    one.do("manage weight=50")
    child = one.do("spawn")["pid"]
    wait_for(lambda: any(task.pid == child for task in daemon.client.ps()), "the child")
    one.do("unmanage")
    wait_for(lambda: any(task.pid == child for task in daemon.client.ps()), "the child by its rule", timeout=8)
    assert (task_of(daemon, child).cap_percent, task_of(daemon, child).weight) == (30, 100)
    os.kill(child, signal.SIGKILL)


def tries(request: Callable[[], object]) -> bool:
    """Whether a request is not refused."""
    with contextlib.suppress(NoTargetError):
        request()
        return True
    return False


def test_a_process_of_a_tree_is_attached_before_it_has_work(
    daemon: Daemon, commands: Commands, worker: Start, tmp_path: Path
) -> None:
    """It has the settings that were asked for it alone, and stays in its tree, whose library limits its memory."""
    before = [sys.executable, "-m", "runlist.cli", "run", "--class", "normal", "--memory", "4G", "--"]
    tree = Worker(commands.environment, tmp_path, idle=True, before=before)
    try:
        pid = tree.do("who")["pid"]
        with pytest.raises(NoTargetError, match="--wait"):
            daemon.client.attach(pid, "latency")
        waiting = commands.start("attach", str(pid), "--wait", "--class", "latency", stdout=subprocess.PIPE, text=True)
        wait_for(lambda: tries(lambda: daemon.client.set(pid, {})), "the command to wait")
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(PATIENCE_S) == 130
        with pytest.raises(NoTargetError):
            daemon.client.set(pid, {"weight": 5})
        assert daemon.client.attach(pid, "batch", settings={"weight": 20}, wait=True) == []
        assert daemon.client.set(pid, {"weight": 30}) == []
        tree.do("open")
        wait_for(lambda: [task.pid for task in daemon.client.ps()] == [pid], "its work to be managed")
        (task,) = daemon.client.ps()
        assert (task.task_class, task.weight, task.memory_limit_bytes) == ("batch", 30, 4 << 30)
        assert "memory" in task.enforcement
        (task,) = daemon.client.set(pid, {"class": "normal"})
        assert (task.task_class, task.weight) == ("normal", 30)
        (task,) = daemon.client.attach(pid, "latency")
        assert (task.task_class, task.weight) == ("latency", 30)
        assert tree.quit()
    finally:
        tree.kill()
