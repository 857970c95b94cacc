"""The keeper, in this process: what it replays when the daemon's end closes, and in which order."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.undo.keeper import Keeper
from runlist.planes.process.region import create, memory_words
from runlist.wire import Connection, Guard, GuardRegion, KeepRecord, Unguard


class World:
    """The daemon's end, and a plane that notes what is replayed on which file."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.daemon = Connection(ours)
        self.replayed: list[tuple[str, bytes]] = []
        self.fails: set[bytes] = set()
        self.knows = True  # the files that it is given
        self.opened = len(os.listdir("/proc/self/fd"))
        plane: Any = SimpleNamespace(replayer=self._replayer)
        self.theirs = theirs
        self.keeper = Keeper(plane, theirs)

    def _replayer(self, fd: int) -> Any:
        name = os.readlink(f"/proc/self/fd/{fd}").removeprefix("/memfd:").partition(" ")[0]
        if not self.knows:
            os.close(fd)
            return None

        def replay(step: bytes) -> None:
            if step in self.fails:
                raise OSError(5, "the process freed it")
            self.replayed.append((name, step))

        return SimpleNamespace(replay=replay, close=lambda: os.close(fd))

    def guard(self, key: int, name: str, *steps: bytes, pid: int = os.getpid()) -> None:
        fd = os.memfd_create(name)
        self.daemon.send(Guard(key, pid, list(steps)), [fd])
        os.close(fd)

    def end(self) -> list[tuple[str, bytes]]:
        """The daemon dies; what was replayed."""
        self.daemon.sock.close()
        self.keeper.serve()
        return self.replayed

    def take(self) -> None:
        """What was sent is taken, and the keeper waits."""
        self.daemon.sock.shutdown(socket.SHUT_WR)


@pytest.fixture
def world() -> Iterator[World]:
    one = World()
    before = one.opened
    yield one
    one.keeper._selector.close()
    one.theirs.close()
    one.daemon.sock.close()
    assert len(os.listdir("/proc/self/fd")) <= before  # every file that it was given is closed


def test_each_step_is_replayed_for_all_before_the_next_one(world: World) -> None:
    world.guard(1, "one", b"slice", b"resume")
    world.guard(2, "two", b"slice", b"more", b"resume")
    world.guard(3, "none")
    assert world.end() == [
        ("one", b"slice"), ("two", b"slice"), ("one", b"resume"), ("two", b"more"), ("two", b"resume"),
    ]  # fmt: skip


def test_a_step_that_fails_keeps_no_other_from_being_replayed(world: World) -> None:
    world.fails = {b"bad"}
    world.guard(1, "one", b"bad", b"resume")
    world.guard(2, "two", b"slice")
    assert world.end() == [("two", b"slice"), ("one", b"resume")]


def test_what_was_let_go_of_or_replaced_is_not_replayed(world: World) -> None:
    world.guard(1, "one", b"old")
    world.guard(1, "one", b"new")
    world.guard(2, "two", b"slice")
    world.daemon.send(Unguard(2))
    world.daemon.send(Unguard(9))
    world.guard(3, "three", b"slice")
    assert world.end() == [("one", b"new"), ("three", b"slice")]


def test_of_a_process_that_has_ended_nothing_is_kept(world: World) -> None:
    process = subprocess.Popen(["sleep", "60"])
    world.guard(1, "gone", b"slice", pid=process.pid)
    world.guard(2, "here", b"slice")
    handled: list[int] = []
    handle = world.keeper._handle

    def noted(message: Any) -> None:
        handle(message)
        handled.append(message.key)
        if message.key == 2:
            process.kill()
            process.wait()
            world.daemon.send(Unguard(3))  # the next round sees both
        elif message.key == 3:
            assert list(world.keeper._guarded) == [2]
            world.daemon.sock.close()

    world.keeper._handle = noted  # type: ignore[method-assign]
    world.keeper.serve()
    assert (handled, world.replayed) == ([1, 2, 3], [("here", b"slice")])


def test_what_cannot_be_replayed_is_not_kept(world: World) -> None:
    world.knows = False
    world.guard(1, "file", b"slice")
    world.daemon.send(Unguard(7))
    assert world.end() == []


def test_a_process_that_ended_before_it_was_told_of_is_not_kept(world: World) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    world.guard(1, "file", b"slice", pid=process.pid)
    assert world.end() == []


def test_once_everything_is_put_back_the_record_is_empty(world: World) -> None:
    record = os.memfd_create("record")
    os.write(record, b"123 456\n")
    world.daemon.send(KeepRecord(), [record])
    sizes: list[int] = []
    world.guard(1, "one", b"slice")
    replayer = world._replayer

    def noting(fd: int) -> Any:
        found = replayer(fd)
        replay = found.replay
        found.replay = lambda step: (sizes.append(os.fstat(record).st_size), replay(step))
        return found

    world.keeper._plane = SimpleNamespace(replayer=noting)  # type: ignore[assignment]
    world.end()
    assert (sizes, os.fstat(record).st_size) == ([8], 0)  # not before
    os.close(record)


def test_words_of_regions_are_written_when_the_daemon_dies(world: World, tmp_path: Path) -> None:
    """Those of the last message of a key; and none that were put back by the daemon."""
    regions = [create(tmp_path, strict=True)[1] for _ in range(3)]
    for key, region in enumerate(regions):
        region.set_memory(1)
        world.daemon.send(GuardRegion(key, memory_words(2)), [region.fileno()])
    world.daemon.send(GuardRegion(0, memory_words(3)), [regions[0].fileno()])
    world.daemon.send(Unguard(1), [])
    world.end()
    assert [region.read().memory for region in regions] == [3, 1, 2]
    for region in regions:
        region.close()


def test_a_region_that_is_none_any_more_keeps_no_other_from_being_put_back(world: World, tmp_path: Path) -> None:
    bad, good = (create(tmp_path, strict=True)[1] for _ in range(2))
    for key, region in enumerate((bad, good)):
        world.daemon.send(GuardRegion(key, memory_words(2)), [region.fileno()])
    os.ftruncate(bad.fileno(), 0)
    world.end()
    assert good.read().memory == 2
    for region in (bad, good):
        region.close()
