"""The keys of `runlist top` that ask, take back, filter and help, and terminals that it cannot draw on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from runlist import wire
from runlist.client import Client
from runlist.errors import ExitCode
from runlist.top import actions
from runlist.top.feed import Feed, Key
from runlist.top.rows import gpu_bars, matching
from tests.fixtures.daemon import running, wait_for
from tests.fixtures.fake_daemon import FakeDaemon, gpu_view, status, view
from tests.fixtures.screen import until
from tests.unit.test_top_app import FIRST, SECOND, on_screen


def test_a_change_is_taken_back(fake: FakeDaemon) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "train.py")
        await pilot.press("u")
        await until(pilot, "nothing to take back")
        await pilot.press("c", "+", "s")
        await until(pilot, "process 42: suspended")
        await pilot.press("u")
        await until(pilot, "process 42: resumed")
        await pilot.press("u")
        await until(pilot, "process 42: weight=100 again")
        await pilot.press("u")
        await until(pilot, "process 42: class=batch again")
        await pilot.press("u")
        await until(pilot, "nothing to take back")

    on_screen(steps)
    assert fake.tasks == [view()]


def test_only_what_was_done_is_taken_back(fake: FakeDaemon) -> None:
    feed = Feed(Client.open)
    feed.look()
    feed.act(Key.of(view()), actions.heavier)
    fake.answers[wire.Change] = wire.Failure("weights are frozen", ExitCode.NO_PERMISSION)
    assert feed.act(Key.of(view()), actions.heavier).message == "weights are frozen"
    del fake.answers[wire.Change]
    fake.tasks = []
    feed.look()
    assert "process 42 is not managed any more" in feed.undo().message
    assert feed.undo().message == "there is nothing to take back"
    feed.close()


@pytest.mark.parametrize(
    ("key", "old", "typed", "request_", "back"),
    [
        ("k", "max", "30%", {"cap": "30%"}, {"cap": "max"}),
        ("k", "max", "", None, None),
        ("k", "max", "max", None, None),
        ("m", "max", "8G", {"memory": "8G"}, {"memory": "max"}),
    ],
)
def test_a_value_is_asked_for(
    fake: FakeDaemon, key: str, old: str, typed: str, request_: dict[str, str] | None, back: dict[str, str] | None
) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "train.py")
        await pilot.press(key)
        await until(pilot, "process 42", f"or max: {old}")
        await pilot.press(*["backspace"] * len(old), *("percent_sign" if one == "%" else one for one in typed), "enter")
        if request_ is not None:
            await until(pilot, "u takes it back")
            await pilot.press("u")
            await until(pilot, "again")
        await pilot.pause()

    on_screen(steps)
    asked = [request.settings for request in fake.asked(wire.Change)]
    assert asked == ([] if request_ is None else [request_, back])


def test_a_question_whose_task_went_away(fake: FakeDaemon) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "train.py")
        await pilot.press("k", "q", "c")  # letters of the answer, and no keys
        fake.tasks = [SECOND]
        await until(pilot, "second", without="train.py")
        await pilot.press("enter")
        await until(pilot, "process 42 is not managed any more")
        await pilot.press("k", "escape", "s")
        await until(pilot, "process 2: suspended")

    on_screen(steps)
    assert fake.asked(wire.Change) == []


def test_a_filter(fake: FakeDaemon) -> None:
    fake.tasks = [FIRST, SECOND]

    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "first", "second")
        await pilot.press("slash", *"SECO", "enter")
        await until(pilot, "only 'SECO'", "second", without="first")
        await pilot.press("s")
        await until(pilot, "process 2: suspended")
        await pilot.press("slash", "x", "enter")
        await until(pilot, "only 'x'", without="second")
        await pilot.press("s", "k", "escape")
        await until(pilot, "first", "second", without="only")

    on_screen(steps)
    assert fake.requests.count(wire.Suspend(2)) == 1
    assert matching([FIRST, SECOND], "") == [FIRST, SECOND]
    assert matching([FIRST, view(pid=77)], "77") == [view(pid=77)]
    assert matching([FIRST, view(labels={"pod": "web-0"})], "POD=web") == [view(labels={"pod": "web-0"})]


def test_help_is_a_page_above_a_screen_that_goes_on(fake: FakeDaemon) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "train.py", "? help", "q quit")
        await pilot.press("question_mark")
        await until(pilot, "take the last change back", "says what fits a program", "Any key closes this page")
        fake.tasks = [SECOND]
        await pilot.pause(0.3)
        await pilot.press("s")
        await until(pilot, "second", without="Any key")
        assert fake.asked(wire.Suspend) == []

    on_screen(steps, (80, 24))


def test_keys_that_come_at_once_close_help_once(fake: FakeDaemon) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await until(pilot, "train.py")
        await pilot.press("question_mark")
        await until(pilot, "Any key closes this page")
        page = pilot.app.screen
        for character in "abc":
            page.post_message(events.Key(character, character))
        await until(pilot, "train.py", without="Any key")

    on_screen(steps, (140, 30))


def test_gpus_have_bars(fake: FakeDaemon) -> None:
    fake.status = status(gpus=[gpu_view(), gpu_view(gpu="GPU-2", memory_size_bytes=None, share_1s=1.0)])

    async def steps(pilot: Pilot[None]) -> None:
        shown = await until(pilot, "4e3db026  ██████░", " 25.0 %", "3.0/140.0G", "100.0 %")
        assert "2         ████████████████████████ 100.0 %" in shown

    on_screen(steps)


@pytest.mark.parametrize(("size", "rows"), [((140, 40), 9), ((140, 8), 1), ((140, 7), 0), ((1, 1), 0), ((10, 24), 5)])
def test_bars_leave_room_for_tasks(fake: FakeDaemon, size: tuple[int, int], rows: int) -> None:
    known = Feed(Client.open)
    fake.status = status(gpus=[gpu_view(gpu=f"GPU-{number:08}") for number in range(16)])
    bars = gpu_bars(known.look(), *size)
    known.close()
    assert len(bars) == rows
    assert all(len(bar) <= size[0] or "more" in bar for bar in bars)
    if rows:
        assert bars[-1] == f"and {16 - rows + 1} GPUs more"


@pytest.mark.parametrize("term", ["dumb", "", "unknown"])
def test_a_terminal_that_cannot_be_drawn_on(fake: FakeDaemon, term: str) -> None:
    terminal, theirs = os.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "runlist.cli", "top"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, timeout=60,
        env={**os.environ, "TERM": term}, text=True,
    )  # fmt: skip
    os.close(theirs)
    os.close(terminal)
    assert done.returncode == ExitCode.NOT_SUPPORTED
    (line,) = done.stderr.splitlines()
    assert f"TERM={term}" in line
    assert "ps --watch" in line


def test_ctrl_z_stops_it_and_it_comes_back(fake: FakeDaemon) -> None:
    terminal, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "runlist.cli", "top", "0.1"], stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"}, process_group=0,
    )  # fmt: skip
    os.close(theirs)

    def read_until(word: bytes) -> None:
        shown = b""
        while word not in shown:
            shown += os.read(terminal, 1 << 16)

    def state() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    read_until(b"train.py")
    os.write(terminal, b"\x1a")
    wait_for(lambda: state() == "T" or not running(process.pid), "it to stop")
    fake.tasks = [view(command="after")]
    process.send_signal(signal.SIGCONT)
    read_until(b"after")
    os.write(terminal, b"q")
    with contextlib.suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass
    os.close(terminal)
    assert process.wait(60) == 0
