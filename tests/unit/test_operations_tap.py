"""The library's log of operations, for several who want it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runlist import operations_log
from runlist.errors import NotSupportedError, UsageError
from runlist.operations.record import Operation
from runlist.operations.tap import listening


class Library:
    """Tells each operation once, as the library does; `started` is whether there is a scheduler."""

    def __init__(self, started: bool = True) -> None:
        self.started = started
        self.logs: list[int] = []
        self._lock = threading.Lock()
        self._numbers: list[int] = []
        self.lost = 0
        self.undone: list[int] = []
        """What is told only when the log goes off."""

    def happen(self, *numbers: int) -> None:
        with self._lock:
            self._numbers += numbers

    def rl_operations_log(self, on: int) -> int:
        self.logs.append(on)
        if not on:
            self.happen(*self.undone)
            self.undone = []
        return 0 if self.started else -2

    def rl_operations_admission(self, admission: None) -> int:
        del admission
        return -22 if self.started else -2

    def rl_operations_take(self, room: Any, most: int) -> int:
        with self._lock:
            taken, self._numbers = self._numbers[:most], self._numbers[most:]
        for at, number in enumerate(taken):
            room[at].launched_ns, room[at].lost, room[at].name = number, self.lost, b"k\xff"
        return len(taken)


class Seen:
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.lost = 0

    def __call__(self, operations: Sequence[Operation], lost: int) -> None:
        self.numbers += [one.launched_ns for one in operations]
        self.lost += lost

    def wait(self, number: int) -> None:
        until = time.monotonic() + 10
        while number not in self.numbers and time.monotonic() < until:
            time.sleep(0.01)


def test_each_who_listens_gets_all_from_when_he_began_to_when_he_ends() -> None:
    library: Any = Library()
    first, second = Seen(), Seen()
    with listening(library, first):
        library.happen(1, 2)
        first.wait(2)
        with listening(library, second):
            library.happen(3)
            second.wait(3)
            library.lost = 5
            library.happen(4)  # told at the end at the latest
        library.happen(5)
        assert library.logs == [1]
        library.undone = [100]
    assert first.numbers == [1, 2, 3, 4, 5, 100]
    assert second.numbers == [3, 4]
    assert (first.lost, second.lost) == (5, 5)
    assert library.logs == [1, 0]
    with listening(library, second):  # and again
        library.happen(6)
    assert second.numbers[-1] == 6
    assert not [one for one in threading.enumerate() if one.name == "operations-log"]


def test_more_than_there_is_room_for_at_a_time_comes_in_order() -> None:
    library: Any = Library()
    seen = Seen()
    with listening(library, seen):
        library.happen(*range(1, 10_001))
    assert seen.numbers == list(range(1, 10_001))


def test_without_a_scheduler_nobody_listens() -> None:
    with pytest.raises(NotSupportedError, match="no scheduler of operations"), contextlib.ExitStack() as stack:
        stack.enter_context(listening(Library(started=False), Seen()))  # type: ignore[arg-type]
    assert not [one for one in threading.enumerate() if one.name == "operations-log"]


def test_a_log_is_written_while_somebody_else_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = Library()
    monkeypatch.setattr("runlist.operations.library", lambda: library)
    seen = Seen()
    with listening(library, seen), operations_log.writing(tmp_path / "log"):
        library.happen(7, 8)
    found = operations_log.read(tmp_path / "log").operations
    assert [one.launched_ns for one in found] == seen.numbers == [7, 8]
    assert found[0].name == "k�"


def test_without_a_scheduler_an_older_log_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlist.operations.library", lambda: Library(started=False))
    older = tmp_path / "older"
    older.write_text("of yesterday")
    for path in (older, tmp_path / "new"):
        with pytest.raises(NotSupportedError, match="no scheduler of operations was started"):
            operations_log.writing(path).__enter__()
    assert older.read_text() == "of yesterday"
    assert list(tmp_path.iterdir()) == [older]


def test_a_log_that_cannot_be_begun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runlist.operations.library", Library)
    refused = pytest.raises(UsageError, match="/dev/full: No space left on device: name a file that can be written")
    with refused, operations_log.writing(Path("/dev/full")):
        raise AssertionError


def test_a_log_that_cannot_go_on_is_told_once_and_its_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library: Any = Library()
    monkeypatch.setattr("runlist.operations.library", lambda: library)
    seen = Seen()
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    with listening(library, seen), operations_log.writing(tmp_path / "log"):
        os.close(reader)
        for number in (1, 2, 3):
            library.happen(number)
            seen.wait(number)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("log: Broken pipe: operations are missing in it from here on")
