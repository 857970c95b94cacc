"""The screen of `runlist top`, with keys pressed, against a fake daemon."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable

from runlist import __version__, wire
from runlist.client import Client
from runlist.errors import ExitCode
from runlist.top.app import TopApp
from runlist.top.feed import Feed
from tests.fixtures.fake_daemon import FakeDaemon, StartFake, client_view, gpu_view, status, view
from tests.fixtures.screen import lines, text, until

Steps = Callable[[Pilot[None]], Awaitable[None]]

FIRST, SECOND = view(pid=1, share_1s=0.9, command="first"), view(pid=2, share_1s=0.1, command="second")


def on_screen(steps: Steps, size: tuple[int, int] = (140, 16)) -> None:
    """Run the app, and do things in it."""

    async def main() -> None:
        app = TopApp(Feed(lambda: Client.open(patience_s=1)), interval_s=0.1)
        async with app.run_test(size=size) as pilot:
            await steps(pilot)
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(main())


def test_what_is_shown(fake: FakeDaemon) -> None:
    fake.status = status(policy_options={"quantum_ms": "20"})

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "1 task on 1 GPU", "policy priority quantum_ms=20", f"daemon 7 (emulated, {__version__})")
        shown = await until(pilot, "train.py --big", "q quit")
        row = next(line for line in shown.splitlines() if "train.py --big" in line)
        for word in ("42", "root", "batch", "100", "max", "1 µs", "25.0 %", "3.0 GiB", "20", "enabled", "switch log"):
            assert word in row

    on_screen(steps)


def test_clients_are_below_the_table_as_long_as_there_are_any(fake: FakeDaemon) -> None:
    low = client_view(client=1, operations_per_s=432.0, queued=7, beside="complements")
    fake.tasks = [view(pid=1, command="first", clients=[client_view(operations_per_s=12_345.6), low])]

    async def steps(pilot: Pilot[None]) -> None:
        shown = await until(pilot, "0 HP", "12,346", "1 BE", "432", "complements")
        rows = shown.splitlines()
        first, other = (next(at for at, row in enumerate(rows) if word in row) for word in ("0 HP", "1 BE"))
        assert other == first + 1
        fake.tasks = [view(pid=1, command="first")]
        await until(pilot, "first", without="1 BE")

    on_screen(steps, (140, 24))


@pytest.mark.parametrize(
    ("key", "request_", "message"),
    [
        ("c", wire.Change(2, {"class": "latency"}), "process 2: class=latency"),
        ("+", wire.Change(2, {"weight": "125"}), "process 2: weight=125"),
        ("=", wire.Change(2, {"weight": "125"}), "process 2: weight=125"),
        ("-", wire.Change(2, {"weight": "80"}), "process 2: weight=80"),
        ("s", wire.Suspend(2), "process 2: suspended"),
    ],
)
def test_keys_change_the_selected_task(fake: FakeDaemon, key: str, request_: wire.Message, message: str) -> None:
    fake.tasks = [FIRST, SECOND]

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "first", "second")
        await pilot.press("down", key)
        await until(pilot, message)
        assert request_ in fake.requests

    on_screen(steps)


def test_the_cursor_stays_with_its_task(fake: FakeDaemon) -> None:
    fake.tasks = [FIRST, SECOND]

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "first", "second")
        await pilot.press("down")
        await pilot.pause()
        fake.tasks = [view(pid=1, share_1s=0.1, command="first"), view(pid=2, share_1s=0.8, command="second")]
        await until(pilot, "80.0 %")
        fake.tasks.insert(0, view(pid=3, share_1s=1.0, command="third"))
        await until(pilot, "third")
        await pilot.press("s")
        await until(pilot, "process 2: suspended")
        await pilot.press("up", "up", "up", "s")
        await until(pilot, "process 3: suspended")

    on_screen(steps)


def test_sorting_goes_round(fake: FakeDaemon) -> None:
    fake.tasks = [view(pid=1, share_1s=0.1, command="first"), view(pid=2, share_1s=0.8, command="second")]

    async def steps(pilot: Pilot[None]) -> None:
        shown = await until(pilot, "sorted by share", "first", "second")
        assert shown.index("second") < shown.index("first")
        await pilot.press("p")
        await until(pilot, "sorted by pid")
        while (shown := await until(pilot, "first", "second")).index("first") > shown.index("second"):
            await pilot.pause(0.02)

    on_screen(steps)


def test_a_refusal_is_a_line_and_no_end(fake: FakeDaemon) -> None:
    fake.answers[wire.Suspend] = wire.Failure("process 42 belongs to [bold]user[/] 0", ExitCode.NO_PERMISSION)

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "train.py")
        await pilot.press("s")
        await until(pilot, "process 42 belongs to [bold]user[/] 0")  # as it is: text of others is no markup
        await until(pilot, "train.py --big")

    on_screen(steps)


def test_a_daemon_that_goes_and_comes_back(start_fake: StartFake) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "no daemon runs", "looking again")
        await pilot.press("s", "c", "plus", "down", "p")
        first = start_fake()
        await until(pilot, "train.py", "connected to a daemon again")
        first.close()
        await until(pilot, "looking again", without="train.py")
        second = start_fake()
        second.tasks = [view(command="after")]
        await until(pilot, "after")

    on_screen(steps)


def test_no_tasks(fake: FakeDaemon) -> None:
    fake.tasks = []

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "no tasks", "`runlist run`")
        await pilot.press("s", "c", "plus", "minus", "up", "down", "p")
        fake.tasks = [view()]
        await until(pilot, "train.py")
        fake.tasks = []
        await until(pilot, "no tasks", without="train.py")

    on_screen(steps)


def test_eighty_columns_say_how_the_background_gives_way_and_why(fake: FakeDaemon) -> None:
    fake.status = status(gpus=[gpu_view(gives_way="slice", gives_way_slice_us=1523, switches_share=0.091)])
    turn = "has the turn; has slices of 1.5 ms, switches cost 9 %"
    waits = "waits for the GPU in 14 % of its work: the background has slices of 1.5 ms, switches cost 9 %"
    fake.tasks = [
        view(pid=11485, why=turn, share_1s=0.8, command="python train.py --model a --epochs 900"),
        view(pid=11375, why=waits, task_class="latency", share_1s=0.1, command="python serve.py --port 8000"),
    ]

    async def steps(pilot: Pilot[None]) -> None:
        shown = await until(
            pilot, "slice 1.5 ms, switches 9 %", "25.0 %", "3.0/140.0G", f"process 11485: {turn}", "python train.py"
        )
        for word in ("PID", "CLASS", "SHARE", "STATE", "COMMAND", "python train.py", "python serve.py", "80.0 %"):
            assert word in shown
        await pilot.press("down")
        shown = await until(pilot, "process 11375:", "switches cost 9 %", without=turn)
        assert waits in " ".join(shown.split())
        await pilot.resize_terminal(80, 8)  # no room for it: the table matters more
        await until(pilot, "python serve.py", without="process 11375:")

    on_screen(steps, (80, 24))


def test_a_terminal_that_is_resized_as_it_ends(fake: FakeDaemon) -> None:
    """What the screen showed may be gone by then."""

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "train.py --big")
        await pilot.app.screen_stack[0].query_one(DataTable).remove()
        await pilot.resize_terminal(80, 8)
        await pilot.pause(0.2)

    on_screen(steps)


@pytest.mark.parametrize("size", [(80, 24), (40, 6), (20, 4), (10, 2), (1, 1)])
def test_small_terminals(fake: FakeDaemon, size: tuple[int, int]) -> None:
    fake.tasks = [view(pid=pid, command=f"job {pid}") for pid in range(100, 120)]

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.pause(0.3)
        await pilot.press("down", "pagedown", "end", "s", "p")
        await pilot.pause(0.2)
        app = pilot.app
        assert isinstance(app, TopApp)
        assert len(lines(app)) == size[1]
        await pilot.resize_terminal(140, 20)
        await until(pilot, "20 tasks on 1 GPU", "COMMAND", "suspended")

    on_screen(steps, size)


def test_a_daemon_that_hangs_holds_up_neither_screen_nor_quitting(fake: FakeDaemon) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "train.py")
        fake.answers[wire.ListTasks] = None
        await pilot.press("p")
        await until(pilot, "sorted by pid")
        await until(pilot, "does not answer")

    on_screen(steps)


@pytest.mark.parametrize("keys", [b"q", b"\x03", b"\xe9q", b"\xff\xfe\x80\x03"], ids=repr)
def test_the_whole_command_in_a_terminal(fake: FakeDaemon, keys: bytes) -> None:
    """Also one of another encoding, whose letters are no UTF-8."""
    terminal, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "runlist.cli", "top", "0.1"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    while b"train.py" not in shown:
        shown += os.read(terminal, 1 << 16)
    os.write(terminal, keys[:-1])
    while process.poll() is None:  # what comes with bytes that are no letters may be lost with them
        os.write(terminal, keys[-1:])
        if select.select([terminal], [], [], 0.2)[0]:
            with contextlib.suppress(OSError):
                shown += os.read(terminal, 1 << 16)
    with contextlib.suppress(OSError):  # the other end closes with the process
        while part := os.read(terminal, 1 << 16):
            shown += part
    assert process.wait(60) == 0
    os.close(terminal)
    assert b"Traceback" not in shown


def test_commands_are_shown_as_they_are(fake: FakeDaemon) -> None:
    fake.tasks = [view(command="serve [red]x[/red] [/]")]

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "serve [red]x[/red] [/]")
        app = pilot.app
        assert isinstance(app, TopApp)
        assert text(app)

    on_screen(steps)
