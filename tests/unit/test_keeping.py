"""The keeper and the daemon's link to it: what it undoes and when, and what happens when keepers end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runlist.daemon.undo import link
from runlist.daemon.undo.keeper import Keeper
from runlist.daemon.undo.link import KeeperLink
from runlist.daemon.undo.record import Record
from runlist.wire import Connection, Guard, Unguard
from tests.fixtures import memory_plane
from tests.fixtures.adoption import child, until
from tests.fixtures.daemon import PATIENCE_S, running

# As they are to be: taken from the code they would hold whatever it says.
MAX_SHORT_LIVES = 3

STATE = struct.Struct("<III")
CHANGED, AS_FOUND = (1, 0, 1), (memory_plane.FOUND_US, 1, 0)


class Kept:
    """A context in memory that was changed, and its process."""

    gpu = memory_plane.GPU

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(STATE.pack(*CHANGED))
        self.handle = memory_plane.File(os.open(path, os.O_RDWR))
        self.steps = memory_plane.Context(self.handle, 1).undo()

    def undo(self) -> list[bytes]:
        return self.steps

    @property
    def state(self) -> tuple[Any, ...]:
        return STATE.unpack(self.path.read_bytes())

    def close(self) -> None:
        self.handle.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# -- the keeper ------------------------------------------------------------------------------------


class Steps:
    """A plane that notes what is replayed; the step `bad` fails."""

    def __init__(self) -> None:
        self.replayed: list[bytes] = []
        self.refuses = False

    def replayer(self, fd: int) -> Steps | None:
        os.close(fd)
        return None if self.refuses else self

    def replay(self, step: bytes) -> None:
        self.replayed.append(step)
        if step.startswith(b"bad"):
            raise OSError("the driver refuses")

    def close(self) -> None:
        pass


def told(plane: Steps, *messages: Guard | Unguard) -> list[bytes]:
    """What a keeper replays that was told this before the daemon died; it leaves no descriptor behind."""
    before = open_files()
    ours, theirs = socket.socketpair()
    daemon = Connection(ours)
    for message in messages:
        if isinstance(message, Guard):
            fd = os.open("/dev/null", os.O_RDONLY)
            daemon.send(message, [fd])
            os.close(fd)
        else:
            daemon.send(message, [])
    daemon.close()
    keeper = Keeper(plane, theirs)  # type: ignore[arg-type]
    keeper.serve()
    keeper._selector.close()
    theirs.close()
    assert open_files() == before
    return plane.replayed


def test_the_keeper_replays_the_first_steps_of_all_then_the_second_ones() -> None:
    me = os.getpid()
    replayed = told(Steps(), Guard(1, me, [b"a1", b"a2", b"a3"]), Guard(2, me, [b"b1"]), Guard(3, me, [b"c1", b"c2"]))
    assert replayed == [b"a1", b"b1", b"c1", b"a2", b"c2", b"a3"]


def test_a_step_that_fails_keeps_no_other_from_being_replayed() -> None:
    me = os.getpid()
    replayed = told(Steps(), Guard(1, me, [b"bad1", b"a2"]), Guard(2, me, [b"b1", b"b2"]))
    assert replayed == [b"bad1", b"b1", b"a2", b"b2"]


def test_what_is_told_again_is_replaced_and_what_is_taken_back_is_forgotten() -> None:
    me = os.getpid()
    told_again = Guard(1, me, [b"new"]), Guard(2, me, [b"kept"])
    assert told(Steps(), Guard(1, me, [b"old"]), *told_again) == [b"new", b"kept"]
    assert told(Steps(), Guard(1, me, [b"x"]), Guard(2, me, [b"kept"]), Unguard(1), Unguard(7)) == [b"kept"]
    assert told(Steps()) == []


def test_what_cannot_be_undone_is_not_kept() -> None:
    """Files that are not the plane's, and those of processes that are gone."""
    plane = Steps()
    plane.refuses = True
    assert told(plane, Guard(1, os.getpid(), [b"x"])) == []
    assert told(Steps(), Guard(1, 1 << 22, [b"x"]), Guard(2, os.getpid(), [b"y"])) == [b"y"]


# -- the link --------------------------------------------------------------------------------------


@pytest.fixture
def plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the plane in memory, which a keeper finds as the tests do."""
    monkeypatch.setenv(memory_plane.VARIABLE, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    return memory_plane.__name__


def linked(plane: str, test: Callable[[KeeperLink, list[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        hopeless: list[str] = []
        keeper = KeeperLink(plane, Record(path), lambda: hopeless.append("hopeless"))
        try:
            await test(keeper, hopeless)
        finally:
            keeper.close()
            keeper.close()  # once is enough
        assert not running(keeper.pid)
        assert hopeless or not path.exists()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed"
        asyncio.run(run())


def sleeping(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


async def rests(pid: int) -> None:
    """Wait until a process sleeps for a while: one that spins never does, however busy the machine is."""
    slept = 0
    async with asyncio.timeout(PATIENCE_S):
        while slept < 20:
            slept = slept + 1 if sleeping(pid) else 0
            await asyncio.sleep(0.005)


def test_closing_the_link_undoes_all_that_is_still_guarded(plane: str, tmp_path: Path) -> None:
    first, second = Kept(tmp_path / "first"), Kept(tmp_path / "second")

    async def test(keeper: KeeperLink, hopeless: list[str]) -> None:
        keys = [keeper.guard(os.getpid(), one) for one in (first, second)]  # type: ignore[arg-type]
        assert len(set(keys)) == 2
        keeper.unguard(keys[0])
        keeper.unguard(keys[0])  # it is gone already

    linked(plane, test)
    assert (first.state, second.state) == (CHANGED, AS_FOUND)
    for one in (first, second):
        one.close()


def test_an_undo_that_changed_is_told_again(plane: str, tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept")

    async def test(keeper: KeeperLink, hopeless: list[str]) -> None:
        key = keeper.guard(os.getpid(), kept)  # type: ignore[arg-type]
        kept.steps = kept.steps[:1]
        keeper.renew(key)

    linked(plane, test)
    assert kept.state == (AS_FOUND[0], *CHANGED[1:])
    kept.close()


def test_a_successor_knows_all_that_its_predecessor_did(plane: str, tmp_path: Path) -> None:
    kept = [Kept(tmp_path / name) for name in "abc"]

    async def test(keeper: KeeperLink, hopeless: list[str]) -> None:
        keys = [keeper.guard(os.getpid(), one) for one in kept]  # type: ignore[arg-type]
        keeper.unguard(keys[0])
        kept[1].steps = kept[1].steps[:1]
        keeper.renew(keys[1])
        first = keeper.pid
        os.kill(first, 9)
        await until(lambda: keeper.pid != first)
        assert hopeless == []

    linked(plane, test)
    assert [one.state for one in kept] == [CHANGED, (AS_FOUND[0], *CHANGED[1:]), AS_FOUND]
    for one in kept:
        one.close()


def test_the_next_daemon_is_left_who_puts_all_back_and_nothing_once_that_is_done(plane: str, tmp_path: Path) -> None:
    kept, path = Kept(tmp_path / "kept"), tmp_path / "changed"

    async def run() -> None:
        record = Record(path)
        keeper = KeeperLink(plane, record, lambda: None)
        keeper.guard(os.getpid(), kept)  # type: ignore[arg-type]
        for _ in range(2):
            noted, changed = (int(line.split()[0]) for line in path.read_text().splitlines())
            assert (noted, changed) == (keeper.pid, os.getpid())
            os.kill(noted, 9)
            await until(lambda first=noted: keeper.pid != first)
        os.close(record.fd)  # as when this process is killed
        record.fd = -1
        keeper.close()

    asyncio.run(run())
    assert (path.read_bytes(), kept.state) == (b"", AS_FOUND)
    kept.close()


def test_keepers_that_end_at_once_are_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_SHORT_LIFE_S", 60.0)  # this machine may be busy
    started: list[int] = []
    popen = subprocess.Popen

    def start(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(len(started))
        return popen(["false"], **options)

    monkeypatch.setattr(link.subprocess, "Popen", start)

    async def test(keeper: KeeperLink, hopeless: list[str]) -> None:
        await until(lambda: hopeless)
        await asyncio.sleep(0.1)
        assert hopeless == ["hopeless"]
        assert len(started) == 1 + MAX_SHORT_LIVES

    linked("nothing", test)


def test_keepers_that_lived_for_long_are_always_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_SHORT_LIFE_S", 0.0)
    popen = subprocess.Popen
    started: list[int] = []

    def start(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(len(started))
        return popen(["false"] if len(started) < 10 else ["cat"], **options)

    monkeypatch.setattr(link.subprocess, "Popen", start)

    async def test(keeper: KeeperLink, hopeless: list[str]) -> None:
        await until(lambda: len(started) == 10)
        await asyncio.sleep(0.05)
        assert (hopeless, len(started)) == ([], 10)

    linked("nothing", test)


def test_where_no_keeper_can_be_started_that_is_tried_again(
    plane: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_RETRY_S", 0.01)
    first, second = Kept(tmp_path / "first"), Kept(tmp_path / "second")
    start, fails = link.helper.start, [MemoryError(), OSError("no room")]

    def refuse(*words: Any) -> subprocess.Popen[bytes]:
        if fails:
            if len(fails) == 1:  # what is managed meanwhile its successor is told
                keeper.guard(os.getpid(), second)
            raise fails.pop()
        return start(*words)

    async def test(made: KeeperLink, hopeless: list[str]) -> None:
        nonlocal keeper
        keeper = made
        keeper.guard(os.getpid(), first)  # type: ignore[arg-type]
        monkeypatch.setattr(link.helper, "start", refuse)
        before = keeper.pid
        os.kill(before, 9)
        await until(lambda: keeper.pid != before)
        assert hopeless == []

    keeper: Any = None
    linked(plane, test)
    assert (first.state, second.state) == (AS_FOUND, AS_FOUND)
    for one in (first, second):
        one.close()


def test_a_keeper_forgets_a_process_that_ended_and_does_nothing_meanwhile(plane: str, tmp_path: Path) -> None:
    """The file that it had of it is closed, and it waits: also while nobody takes the guard back."""
    kept = Kept(tmp_path / "kept")

    async def test(keeper: KeeperLink, hopeless: list[str]) -> None:
        def holds() -> bool:
            links = []
            for fd in os.listdir(f"/proc/{keeper.pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # it opens and closes files as it starts
                    links.append(os.readlink(f"/proc/{keeper.pid}/fd/{fd}"))
            return str(kept.path) in links

        with child() as pid:
            keeper.guard(pid, kept)  # type: ignore[arg-type]
            await until(holds)
            await asyncio.sleep(0.05)
            assert holds()
        await until(lambda: not holds())
        await rests(keeper.pid)

    linked(plane, test)
    assert kept.state == CHANGED  # it was not the keeper's any more
    kept.close()
