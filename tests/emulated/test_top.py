"""`runlist top` on real processes and a real daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from runlist.client import Client
from runlist.top.app import TopApp
from runlist.top.feed import Feed
from tests.fixtures.daemon import PATIENCE_S, Commands, Daemon, Worker
from tests.fixtures.kept import commands, daemon, kept
from tests.fixtures.screen import until

__all__ = ["commands", "daemon", "kept"]

Start = Callable[..., Worker]
Steps = Callable[[Pilot[None]], Awaitable[None]]


def on_screen(steps: Steps) -> None:
    """Run the app on the test's daemon, and do things in it."""

    async def main() -> None:
        app = TopApp(Feed(lambda: Client.open(patience_s=5)), interval_s=0.1)
        async with app.run_test(size=(160, 20)) as pilot:
            await steps(pilot)
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(main())


def test_tasks_come_work_change_and_go(daemon: Daemon, worker: Start) -> None:
    tenant = worker()

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "no tasks", f"daemon {daemon.pid}")
        daemon.client.attach(tenant.pid, "batch")
        await until(pilot, str(tenant.pid), "tests.fixtures.worker", "batch", "enabled", "1 task on 1 GPU")
        await pilot.press("c")
        await until(pilot, "class=latency")
        await pilot.press("plus")
        await until(pilot, "weight=125")
        (task,) = daemon.client.ps()
        assert (task.task_class, task.weight) == ("latency", 125)

        await pilot.press("s")
        await until(pilot, f"process {tenant.pid}: suspended")
        assert daemon.client.ps()[0].suspended
        await asyncio.to_thread(tenant.assert_stopped)
        await pilot.press("s")
        await until(pilot, f"process {tenant.pid}: resumed")
        await asyncio.to_thread(tenant.wait_for_progress)

        assert await asyncio.to_thread(tenant.quit)
        await until(pilot, "no tasks", without="tests.fixtures.worker")

    on_screen(steps)


def test_usage_is_live(daemon: Daemon, worker: Start) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")

    async def steps(pilot: Pilot[None]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            row = ""
            while not set("▂▃▄▅▆▇█") & set(row):
                shown = await until(pilot, str(tenant.pid))
                row = next(line for line in shown.splitlines() if str(tenant.pid) in line)
        (task,) = daemon.client.ps()
        assert task.usage_source
        assert task.usage_source in row

    on_screen(steps)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_daemon_that_ends_is_told_and_its_successor_found(
    start_daemon: Callable[..., Daemon], worker: Start, how: str
) -> None:
    first = start_daemon()
    tenant = worker()
    first.client.attach(tenant.pid, "batch")

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, str(tenant.pid))
        if how == "killed":
            await asyncio.to_thread(first.kill)
        else:
            await asyncio.to_thread(first.client.stop)
        await until(pilot, "looking again", without="tests.fixtures.worker")
        await pilot.press("s", "c", "plus")
        second = await asyncio.to_thread(start_daemon)
        await until(pilot, f"daemon {second.pid}")
        await asyncio.to_thread(second.client.attach, tenant.pid, "normal")
        await until(pilot, str(tenant.pid), "normal")

    on_screen(steps)


def test_a_refusal_is_a_line(daemon: Daemon, worker: Start) -> None:
    first, second = worker(), worker()
    daemon.client.use_policy("gpreempt", {})
    daemon.client.attach(first.pid, "batch")
    daemon.client.attach(second.pid, "latency")

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, str(first.pid), str(second.pid))
        await pilot.press("p", "p")
        await until(pilot, "sorted by class")
        await pilot.press("up", "c")
        await until(pilot, "would stop each", "other")  # in two lines
        assert {task.pid: task.task_class for task in daemon.client.ps()} == {first.pid: "batch", second.pid: "latency"}

    on_screen(steps)


def _shown(master: int, until_ends: subprocess.Popen[bytes], text: bytes = b"") -> bytes:
    """What comes to a terminal until it has a text, or until a process has ended."""
    shown = b""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        if select.select([master], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                shown += os.read(master, 1 << 16)
        elif until_ends.poll() is not None:
            break
        if text and text in shown:
            break
    return shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_killed_gives_the_terminal_back(commands: Commands, daemon: Daemon, number: signal.Signals) -> None:
    """As `timeout 10 runlist top` does, or an end of the session: the shell is to have its own screen and modes."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 100))
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        [sys.executable, "-m", "runlist.cli", "top"], stdin=slave, stdout=slave, stderr=slave, cwd=commands.folder,
        env={**commands.environment, "TERM": "xterm"}, start_new_session=True,
    )  # fmt: skip
    try:
        assert f"daemon {daemon.pid}".encode() in _shown(master, process, f"daemon {daemon.pid}".encode())
        process.send_signal(number)
        shown = _shown(master, process)
        assert process.wait(PATIENCE_S) == -number
        assert b"\x1b[?1049l" in shown  # the shell's screen again
        assert b"Traceback" not in shown
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)
