"""Latency programs that lie about their requests, to keep others off the GPU or the daemon at work."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runlist.client import Client
from runlist.daemon.requests.clients import MOST_PER_S, MOST_SHARE
from runlist.planes.process.region.format import CLIENTS
from runlist.top.clients import client_lines
from runlist.views.structs import TaskView
from tests.conftest import ON_NVIDIA
from tests.fixtures.actuator import actuators, armed, program, watched
from tests.fixtures.daemon import (
    NOBODY,
    PATIENCE_S,
    ROOT,
    As,
    Commands,
    Daemon,
    Worker,
    group_of_nobody,
    needs_others,
    running,
    task_of,
    wait_for,
)
from tests.fixtures.effort import TIMES
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="no real GPU should have to bear this")

Start = Callable[..., Worker]

NOT_BELIEVED = "did not want the GPU"
CPU_PERCENT = 90
"""Of one core: a flood of messages takes 40 where nothing else runs."""
LYING_S = 0.5 if TIMES == 1 else 5.0
"""How long a liar goes on."""


class Liar:
    """A `tests.hostile.liar`, under `runlist run`, or as another user."""

    def __init__(self, commands: Commands, way: str, *words: str, user: int | None = None) -> None:
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "cwd": ROOT}
        if user is None:
            program = [sys.executable, "-m", "tests.hostile.liar", way, *words]
            self._process = commands.start("run", "--class", "latency", "--", *program, **options)
        else:
            env = {**commands.environment, "RUNLIST_TEST_USER": str(user)}
            self._process = commands.start(way, *words, module="tests.hostile.liar", env=env, **options)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()
        self.pid = int(line)

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


def tasks(daemon: Daemon) -> dict[int, TaskView]:
    return {task.pid: task for task in daemon.client.ps()}


def cpu_s(pid: int) -> float:
    """What a process had of the CPUs so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def times_off(daemon: Daemon, pid: int, seconds: float) -> tuple[int, int]:
    """How often a task was looked at, and how often it was found off for a request."""
    looked, off, ends = 0, 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        looked += 1
        off += task_of(daemon, pid).why == "kept off by a request"
        time.sleep(0.005)
    return looked, off


@pytest.fixture
def lying(daemon: Daemon, commands: Commands, worker: Start) -> Callable[[str], tuple[Liar, Worker]]:
    """Starts a liar beside a batch job, which gives way by request."""

    def start(way: str) -> tuple[Liar, Worker]:
        daemon.client.use_policy("priority", {"give_way": "request"})
        batch = worker()
        daemon.client.attach(batch.pid, "batch")
        liar = Liar(commands, way)
        wait_for(lambda: {batch.pid, liar.pid} <= tasks(daemon).keys(), "both tasks")
        liar.begin()
        return liar, batch

    return start


@pytest.mark.parametrize("way", ["waits", "announces", "flood", "counts"])
def test_who_lies_is_not_believed(daemon: Daemon, lying: Callable[[str], tuple[Liar, Worker]], way: str) -> None:
    liar, batch = lying(way)
    wait_for(lambda: NOT_BELIEVED in task_of(daemon, liar.pid).why, "the liar to be found out", timeout=150)
    assert times_off(daemon, batch.pid, 0.5)[1] == 0
    batch.wait_for_progress(20)


def test_who_is_found_out_and_comes_anew_is_not_believed(
    daemon: Daemon, lying: Callable[[str], tuple[Liar, Worker]]
) -> None:
    liar, batch = lying("waits")
    wait_for(lambda: NOT_BELIEVED in task_of(daemon, liar.pid).why, "the liar to be found out")
    for _ in range(2):
        daemon.client.detach(liar.pid)
        daemon.client.attach(liar.pid, "latency")
        assert NOT_BELIEVED in task_of(daemon, liar.pid).why
    assert times_off(daemon, batch.pid, 0.5)[1] == 0


@pytest.mark.parametrize(
    "way",
    [
        "waits",
        "flood",
        "garbage",
        "counts",
        "hides",
        "scribbles",
        "cuts",
        "unwatches",
        "spins",
        "wakes",
        "toggles",
        "empties",
        "shortens",
        "swells",
        "foretells",
        "pretends",
        "opens",
        "boasts",
    ],
)
def test_whatever_it_does_the_others_and_the_daemon_go_on(
    daemon: Daemon, lying: Callable[[str], tuple[Liar, Worker]], way: str
) -> None:
    liar, batch = lying(way)
    began, before = time.monotonic(), cpu_s(daemon.pid)
    acting = {pid: cpu_s(pid) for pid in actuators(daemon.pid)}
    batch.wait_for_progress(1)  # whatever uses the GPU all the time leaves it a part of each break
    while time.monotonic() < began + LYING_S:
        daemon.client.status()
        time.sleep(0.02)
    took = (cpu_s(daemon.pid) - before) / (time.monotonic() - began)
    assert 100 * took < CPU_PERCENT
    for pid in actuators(daemon.pid):
        took = (cpu_s(pid) - acting.get(pid, 0.0)) / (time.monotonic() - began)
        assert 100 * took < CPU_PERCENT / 3
    with contextlib.suppress(ProcessLookupError):
        os.kill(liar.pid, 9)
    wait_for(lambda: liar.pid not in tasks(daemon), "it to be forgotten")
    assert task_of(daemon, batch.pid).enabled
    batch.wait_for_progress(20)
    assert batch.quit()


@pytest.mark.parametrize("way", ["wakes", "toggles", "cuts"])
def test_the_requests_of_others_are_seen_as_soon_as_ever(
    daemon: Daemon, commands: Commands, lying: Callable[[str], tuple[Liar, Worker]], way: str
) -> None:
    _, batch = lying(way)
    with program(commands, daemon, "--steps", "100000", "--gap-us", "500", "--rounds", "1000") as honest:
        time.sleep(0.3)  # some lies
        watched(honest)
        armed(daemon)
        wait_for(lambda: task_of(daemon, batch.pid).enabled)
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            honest.run()
            batch.assert_stopped()
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
    batch.wait_for_progress()


@pytest.mark.parametrize("give_way", ["switch", "request"])
def test_who_announces_all_the_time_is_ignored_and_named(
    daemon: Daemon, lying: Callable[[str], tuple[Liar, Worker]], give_way: str
) -> None:
    liar, batch = lying("foretells")
    daemon.client.use_policy("priority", {"give_way": give_way})
    wait_for(lambda: "announcements are ignored" in task_of(daemon, liar.pid).why, "the liar to be found out")
    looked, off, ends = 0, 0, time.monotonic() + 2 * LYING_S
    while time.monotonic() < ends:
        looked += 1
        off += not task_of(daemon, batch.pid).enabled
        time.sleep(0.005)
    assert off / looked < 0.25, "2 % in the long run, and 50 ms at once"
    batch.wait_for_progress(20)


def test_a_file_that_is_cut_short_ends_the_request(daemon: Daemon, lying: Callable[[str], tuple[Liar, Worker]]) -> None:
    liar, batch = lying("cuts")
    time.sleep(0.3)
    assert running(liar.pid)
    assert times_off(daemon, batch.pid, 0.5)[1] == 0
    assert "of no more use" in daemon.log.read_text()


def test_who_boasts_of_clients_is_shown_as_numbers_and_nobody_else_is(
    daemon: Daemon, lying: Callable[[str], tuple[Liar, Worker]]
) -> None:
    liar, batch = lying("boasts")
    wait_for(lambda: task_of(daemon, liar.pid).clients, "what it says")
    seen, ends = 0, time.monotonic() + LYING_S
    while time.monotonic() < ends or not seen:
        told = tasks(daemon)
        assert told[batch.pid].clients == []
        for client in told[liar.pid].clients:
            seen += 1
            assert 0 <= client.operations_per_s <= MOST_PER_S
            assert 0 <= (client.sms_share or 0) <= MOST_SHARE
            assert client.beside.isprintable()
        assert len(told[liar.pid].clients) <= CLIENTS
        text = "\n".join(client_lines(list(told.values()), 200, 100))
        assert text.replace("\n", "").isprintable()
    batch.wait_for_progress(20)


@needs_others
def test_nobody_speaks_for_the_tasks_of_others(
    commands: Commands, start_daemon: Callable[..., Daemon], worker: Start, opened: None
) -> None:
    """A user's region names the tasks of another one; and of its flood the other one's requests suffer nothing."""
    daemon = start_daemon("--group", group_of_nobody())
    daemon.client.use_policy("priority", {"give_way": "request"})
    batch, attached = worker(), worker()
    attached.do("pause")
    daemon.client.attach(batch.pid, "batch")
    daemon.client.attach(attached.pid, "latency")
    mine = Liar(commands, "waits")
    wait_for(lambda: mine.pid in tasks(daemon))
    forger = Liar(commands, "forges", *map(str, (mine.pid, attached.pid, batch.pid)), user=NOBODY)
    wait_for(lambda: forger.pid in tasks(daemon))
    forger.begin()
    assert times_off(daemon, batch.pid, 1)[1] == 0
    flood = Liar(commands, "flood", user=NOBODY)
    wait_for(lambda: flood.pid in tasks(daemon))
    flood.begin()
    wait_for(lambda: NOT_BELIEVED in task_of(daemon, flood.pid).why, "the flood to be found out", timeout=60)
    assert NOT_BELIEVED not in task_of(daemon, mine.pid).why
    began = time.monotonic()
    assert As(NOBODY)(lambda: Client.open().status().pid) == daemon.pid
    assert time.monotonic() - began < PATIENCE_S
    mine.begin()  # it is heard in the flood, and found out in its turn
    wait_for(lambda: NOT_BELIEVED in task_of(daemon, mine.pid).why)


@pytest.fixture
def opened(commands: Commands) -> Iterator[None]:
    """All users may use the emulated GPU, and reach the daemon."""
    gpu = Path(commands.environment["RUNLIST_EMULATED_GPU"])
    with contextlib.ExitStack() as undo:
        for path in (gpu.parent, gpu, *gpu.iterdir(), commands.folder):
            undo.callback(path.chmod, path.stat().st_mode & 0o7777)
            path.chmod(0o755 if path == commands.folder else 0o777)
        yield
