"""The class of a process that works now and then, as a notebook does; tests/node has a real kernel."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.errors import UsageError
from runlist.integrations import jupyter
from runlist.integrations.jupyter import idle
from runlist.integrations.jupyter.idle import IdleClass
from tests.fixtures.daemon import Commands, Daemon, Worker, commands, daemon, short_path, start_daemon, wait_for, worker

__all__ = ["commands", "daemon", "short_path", "start_daemon", "worker"]


@pytest.fixture
def follow() -> Iterator[Callable[..., IdleClass]]:
    made: list[IdleClass] = []

    def start(*words: Any, **options: Any) -> IdleClass:
        made.append(IdleClass(*words, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def class_of(daemon: Daemon, pid: int) -> str:
    return next((task.task_class for task in daemon.client.ps() if task.pid == pid), "")


def test_it_is_batch_while_idle_and_normal_at_work(
    daemon: Daemon, worker: Callable[..., Worker], follow: Callable[..., IdleClass]
) -> None:
    notebook = worker()
    follower = follow(notebook.pid, after_s=0.5)
    wait_for(lambda: class_of(daemon, notebook.pid) == "normal", "it is attached")
    wait_for(lambda: class_of(daemon, notebook.pid) == "batch", "it is idle")
    for _ in range(2):
        began = time.monotonic()
        follower.begin()
        wait_for(lambda: class_of(daemon, notebook.pid) == "normal", "it works")
        assert time.monotonic() - began < 20
        time.sleep(0.8)
        assert class_of(daemon, notebook.pid) == "normal"  # however long a cell takes
        follower.end()
        assert class_of(daemon, notebook.pid) == "normal"  # the pause between two cells
        wait_for(lambda: class_of(daemon, notebook.pid) == "batch", "it is idle again")
    follower.close()
    follower.begin()
    time.sleep(0.3)
    assert class_of(daemon, notebook.pid) == "batch"
    assert follower.trouble == ""


def test_what_somebody_else_says_in_between_stays(
    daemon: Daemon, worker: Callable[..., Worker], follow: Callable[..., IdleClass]
) -> None:
    """Until there is something new to say."""
    notebook = worker()
    follower = follow(notebook.pid, after_s=0)
    wait_for(lambda: class_of(daemon, notebook.pid) == "batch", "it is idle")
    daemon.client.set(notebook.pid, {"class": "latency"})
    time.sleep(0.3)
    assert class_of(daemon, notebook.pid) == "latency"
    follower.begin()
    wait_for(lambda: class_of(daemon, notebook.pid) == "normal", "it works")


def test_other_settings_of_a_task_stay(
    daemon: Daemon, worker: Callable[..., Worker], follow: Callable[..., IdleClass]
) -> None:
    notebook = worker()
    daemon.client.attach(notebook.pid, "normal", settings={"weight": 30, "cap": 50})
    follow(notebook.pid, after_s=0)
    wait_for(lambda: class_of(daemon, notebook.pid) == "batch", "it is idle")
    (task,) = daemon.client.ps()
    assert (task.weight, task.cap_percent) == (30, 50)


def test_without_a_daemon_nothing_happens_until_there_is_one(
    commands: Commands,
    start_daemon: Callable[..., Daemon],
    worker: Callable[..., Worker],
    follow: Callable[..., IdleClass],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle, "AGAIN_S", 0.2)
    notebook = worker()
    follower = follow(notebook.pid, after_s=0)
    began = time.monotonic()
    follower.begin()
    follower.end()
    assert time.monotonic() - began < 5
    wait_for(lambda: "no daemon runs" in follower.trouble, "it is refused")
    daemon = start_daemon()
    wait_for(lambda: class_of(daemon, notebook.pid) == "batch", "it is managed")
    wait_for(lambda: follower.trouble == "", "all is well")


def test_a_daemon_that_is_started_again_is_told_what_was_said_before(
    start_daemon: Callable[..., Daemon],
    worker: Callable[..., Worker],
    follow: Callable[..., IdleClass],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when it is updated: nobody runs a cell only so that their notebook is batch again."""
    monkeypatch.setattr(idle, "LOOK_S", 0.2)
    monkeypatch.setattr(idle, "AGAIN_S", 0.2)
    daemon, notebook = start_daemon(), worker()
    follower = follow(notebook.pid, after_s=0)
    wait_for(lambda: class_of(daemon, notebook.pid) == "batch", "it is idle")
    daemon.client.set(notebook.pid, {"class": "latency"})
    daemon.kill()
    wait_for(lambda: follower.trouble != "", "it is missed")
    daemon = start_daemon()
    wait_for(lambda: class_of(daemon, notebook.pid) == "batch", "it is managed again")
    daemon.client.set(notebook.pid, {"class": "latency"})
    time.sleep(0.5)
    assert class_of(daemon, notebook.pid) == "latency", "it is told once"
    assert follower.trouble == ""


def test_a_notebook_may_never_be_idle(
    daemon: Daemon, worker: Callable[..., Worker], follow: Callable[..., IdleClass]
) -> None:
    notebook = worker()
    follower = follow(notebook.pid, after_s=float("inf"))
    wait_for(lambda: class_of(daemon, notebook.pid) == "normal", "it is managed")
    follower.begin()
    follower.end()
    daemon.client.set(notebook.pid, {"class": "latency"})
    time.sleep(0.3)
    assert class_of(daemon, notebook.pid) == "latency"
    assert any(thread.name == "runlist-idle" and thread.is_alive() for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("active", "resting"), [("urgent", "batch"), ("deadline", "batch"), ("normal", ""), ("normal", "batch\n")]
)
def test_classes_that_do_not_exist_are_refused_at_once(active: str, resting: str) -> None:
    with pytest.raises(UsageError, match="class"):
        IdleClass(1, active, resting)


class Events:
    """As IPython's."""

    def __init__(self) -> None:
        self.hooks: list[tuple[str, Any]] = []

    def register(self, name: str, hook: Any) -> None:
        self.hooks.append((name, hook))

    def unregister(self, name: str, hook: Any) -> None:
        self.hooks.remove((name, hook))


def test_the_extension_is_loaded_once_and_unloaded() -> None:
    shell = SimpleNamespace(events=Events(), config={"Runlist": {"after_s": 5, "idle": "batch"}})
    jupyter.load_ipython_extension(shell)
    jupyter.load_ipython_extension(shell)
    assert [name for name, _ in shell.events.hooks] == ["pre_run_cell", "post_run_cell"]
    jupyter.unload_ipython_extension(shell)
    jupyter.unload_ipython_extension(shell)
    assert shell.events.hooks == []


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"after": 5}, "c.Runlist.after: no such setting: take active, idle, after_s"),
        ({"after_s": "60s"}, "c.Runlist.after_s = '60s': take a number of seconds"),
        ({"after_s": None}, "take a number of seconds"),
        ({"idle": "lazy"}, "class"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused_in_a_line(config: dict[str, Any], line: str) -> None:
    shell = SimpleNamespace(events=Events(), config={"Runlist": config})
    with pytest.raises(UsageError, match=re.escape(line)):
        jupyter.load_ipython_extension(shell)
    assert shell.events.hooks == []
