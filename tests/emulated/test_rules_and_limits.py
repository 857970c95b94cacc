"""Processes that nobody named, and processes that are too many: a real daemon with a rules file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runlist.client import Client
from runlist.emulated import EmulatedGpu
from tests.fixtures.daemon import Commands, Daemon, Worker, refusal, task_of, wait_for

Start = Callable[..., Worker]
StartDaemon = Callable[..., Daemon]


@pytest.fixture
def rules(start_daemon: StartDaemon, tmp_path: Path) -> Callable[[str], Daemon]:
    """Starts a daemon with a rules file of this text."""

    def start(text: str) -> Daemon:
        path = tmp_path / "rules.toml"
        path.write_text(text)
        return start_daemon("--rules", str(path))

    return start


def named(worker: Start, commands: Commands, kind: str, **options: Any) -> Worker:
    """A worker whose environment says what kind it is."""
    return worker(environment={**commands.environment, "KIND": kind}, **options)


def test_processes_that_nobody_named_are_managed_by_the_rules(
    commands: Commands, rules: Callable[[str], Daemon], worker: Start
) -> None:
    there = named(worker, commands, "train")
    daemon = rules(
        '[[rule]]\nenvironment = { KIND = "train" }\nset = { class = "batch", weight = 50, group = "user" }\n'
        '[[rule]]\nenvironment = { KIND = "serve" }\nset = { class = "latency" }\n'
    )
    wait_for(daemon.client.ps, "the one that was there before")
    later, other = named(worker, commands, "serve"), named(worker, commands, "other")
    wait_for(lambda: len(daemon.client.ps()) == 2, "the one that came later")
    later.do("pause")
    tasks = {task.pid: task for task in daemon.client.ps()}
    assert (tasks[there.pid].task_class, tasks[there.pid].weight) == ("batch", 50)
    assert (tasks[there.pid].group, tasks[there.pid].rule) == (f"user:{tasks[there.pid].user}", "rules.toml:1")
    assert (tasks[later.pid].task_class, tasks[later.pid].rule) == ("latency", "rules.toml:4")
    lines = commands.ok("policy", "show").splitlines()
    assert any(str(there.pid) in line and "rules.toml:1" in line for line in lines)
    daemon.client.detach(there.pid)  # the user's word is the last one
    there.wait_for_progress()
    time.sleep(0.5)
    assert [task.pid for task in daemon.client.ps()] == [later.pid]
    daemon.client.attach(other.pid, None)
    assert task_of(daemon, other.pid).rule == ""
    assert all(tenant.quit() for tenant in (there, other))


def test_over_the_limit_refused(commands: Commands, rules: Callable[[str], Daemon], worker: Start) -> None:
    daemon = rules('[limits]\ntasks = 1\nover = "refuse"\n')
    first, second = worker(), worker()
    daemon.client.attach(first.pid, "batch")
    line = commands.fails(1, "attach", str(second.pid), "--class", "batch")
    assert "has 1 task, and rules.toml:1 allows 1" in line
    assert "is not started" in commands.fails(1, "run", "--", "true")
    assert [task.pid for task in daemon.client.ps()] == [first.pid]
    second.wait_for_progress()  # left to the driver's own scheduling
    first.quit()
    wait_for(lambda: not daemon.client.ps())
    commands.ok("run", "--", "true")
    wait_for(lambda: not refusal(lambda: daemon.client.attach(second.pid)), "room again")  # also for what was started


def test_over_the_limit_as_batch(commands: Commands, rules: Callable[[str], Daemon], worker: Start) -> None:
    daemon = rules('[limits]\ntasks = 1\nover = "batch"\n')
    first, second = worker(), worker()
    daemon.client.attach(first.pid, "latency")
    (task,) = daemon.client.attach(second.pid, "latency")
    assert task.task_class == "batch"
    assert task_of(daemon, first.pid).task_class == "latency"
    assert commands.run("run", "--class", "latency", "--", "sh", "-c", "exit 4").returncode == 4
    with Client.open() as client:
        client.launch(os.getpid(), None, {"deadline": "5ms/20ms"})
        third = worker()
        wait_for(lambda: third.pid in [task.pid for task in daemon.client.ps()])
        assert (task_of(daemon, third.pid).task_class, task_of(daemon, third.pid).budget_us) == ("batch", None)


def test_over_the_limit_in_a_queue(commands: Commands, rules: Callable[[str], Daemon], worker: Start) -> None:
    daemon = rules("[limits]\ntasks = 1\n")
    first, second = worker(), worker()
    daemon.client.attach(first.pid, "batch")
    (task,) = daemon.client.attach(second.pid, "batch")
    assert task.suspended
    second.assert_stopped()
    process = commands.start(
        "run", "--class", "batch", "--", sys.executable, "-m", "runlist.workloads.batch", "--rounds", "20000",
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert "waits for room" in process.stderr.readline()
    shown = commands.json("policy", "show")
    assert len(shown["waiting"]) == 2
    assert f"process {second.pid} (" in shown["waiting"][0]
    assert str(process.pid) in shown["waiting"][1]
    assert first.quit()
    second.wait_for_progress()
    assert process.poll() is None
    assert second.quit()
    assert json.loads(process.stdout.readline())["event"] == "ready"
    process.stdin.write("run\nquit\n")
    process.stdin.flush()
    process.stdout.readline()
    assert json.loads(process.stdout.readline())["correct"]
    assert process.wait(60) == 0
    wait_for(lambda: daemon.client.status().waiting == [])


def test_those_that_wait_follow_other_limits(
    commands: Commands, rules: Callable[[str], Daemon], worker: Start, tmp_path: Path
) -> None:
    """They waited on, while all who came later were taken as batch."""
    daemon = rules("[limits]\ntasks = 1\n")
    first, second = worker(), worker()
    for tenant in (first, second):
        daemon.client.attach(tenant.pid, "latency")
    waiting = commands.start("run", "--", "true")
    wait_for(lambda: len(daemon.client.status().waiting) == 2, "the command to wait")
    (tmp_path / "rules.toml").write_text('[limits]\ntasks = 1\nover = "refuse"\n')
    commands.ok("rules", "reload")
    assert waiting.wait(60) == 1
    second.assert_stopped(0.2)
    again = tmp_path / "rules.toml"
    again.write_text("[limits]\ntasks = 1\n")
    commands.ok("rules", "reload")
    waiting = commands.start("run", "--", "true")
    wait_for(lambda: len(daemon.client.status().waiting) == 2, "another to wait")
    again.write_text('[limits]\ntasks = 1\nover = "batch"\n')
    commands.ok("rules", "reload")
    assert waiting.wait(60) == 0
    wait_for(lambda: not daemon.client.status().waiting, "the task to be taken")
    assert task_of(daemon, second.pid).task_class == "batch"
    assert task_of(daemon, first.pid).task_class == "latency"
    first.do("pause")
    second.wait_for_progress()


def test_one_that_waits_can_be_suspended_and_stays_so(rules: Callable[[str], Daemon], worker: Start) -> None:
    daemon = rules("[limits]\ntasks = 1\n")
    first, second = worker(), worker()
    for tenant in (first, second):
        daemon.client.attach(tenant.pid, "batch")
    daemon.client.suspend(second.pid)
    assert first.quit()
    wait_for(lambda: not daemon.client.status().waiting, "room")
    second.assert_stopped(0.2)
    assert task_of(daemon, second.pid).suspended
    daemon.client.resume(second.pid)
    second.wait_for_progress()
    assert second.quit()


def test_a_command_is_started_while_any_gpu_has_room(
    commands: Commands,
    rules: Callable[[str], Daemon],
    worker: Start,
    fresh_gpu: Callable[..., EmulatedGpu],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in fresh_gpu(gpus=2).environment().items():
        monkeypatch.setenv(name, value)
        commands.environment[name] = value
    daemon = rules('[limits]\ntasks = 1\nover = "refuse"\n')
    first, second = worker(), worker(idle=True)
    daemon.client.attach(first.pid, "batch")
    commands.ok("run", "--", "true")
    second.do("open 1")
    (task,) = daemon.client.attach(second.pid, "batch")
    assert not task.suspended
    assert "is not started" in commands.fails(1, "run", "--", "true")


def test_a_queue_ends_where_its_users_give_up(
    commands: Commands, rules: Callable[[str], Daemon], worker: Start
) -> None:
    daemon = rules("[limits]\ntasks = 1\n")
    first, second = worker(), worker()
    daemon.client.attach(first.pid, "batch")
    waiting = commands.start("run", "--", "true")
    wait_for(lambda: daemon.client.status().waiting, "the command to wait")
    waiting.kill()
    wait_for(lambda: not daemon.client.status().waiting, "the queue to be empty")  # it is a zombie by now
    waiting.wait()
    daemon.client.attach(second.pid, "batch")
    second.assert_stopped(0.2)
    daemon.client.detach(second.pid)
    second.wait_for_progress()  # nobody is kept waiting by what does not manage it
    assert second.quit()
