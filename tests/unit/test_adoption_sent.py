"""What a process sent of itself: its region and its control file go to its tree, and what is of no use is closed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from runlist.daemon.tree.descriptors import Sent
from runlist.errors import NoPermissionError
from runlist.planes.process.region import Region, create
from tests.fixtures.adoption import PID, World, in_a_daemon, own_usage
from tests.fixtures.fake_rm import FakeFile

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

GPU = "GPU-0"


class File:
    """An open control file, by a descriptor of its own."""

    def __init__(self) -> None:
        self._fd = os.open("/dev/null", os.O_RDWR)
        self.closed = 0

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        self.closed += 1
        os.close(self._fd)


def limited(folder: Path, limit: int) -> Region:
    region = create(folder, strict=False)[1]
    region.set_memory(limit)
    return region


def test_the_first_region_is_the_trees(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        root = world.root()
        world.adoption.take_sent(root, PID, 1, Sent(None, limited(tmp_path, 7 << 30)))
        assert root.quota.has_region
        assert root.quota.limit_on(GPU) == 7 << 30
        world.adoption.take_sent(root, PID, 1, Sent(None, limited(tmp_path, 9 << 30)))
        assert root.quota.limit_on(GPU) == 7 << 30

    in_a_daemon(test)


def test_a_file_is_lent_once_for_each_client(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        root = world.root()
        first, again, other = File(), File(), File()
        assert world.adoption.take_sent(root, PID, 1, Sent(first, None))
        assert not world.adoption.take_sent(root, PID, 1, Sent(again, None))
        assert world.adoption.take_sent(root, PID, 2, Sent(other, None))
        assert (first.closed, again.closed, other.closed) == (0, 1, 0)
        assert PID in world.adoption.lending
        world.adoption.lending.drop(PID)
        assert (first.closed, other.closed) == (1, 1)

    in_a_daemon(test)


def test_the_file_of_a_client_that_is_managed_already_is_of_no_use() -> None:
    async def test(world: World) -> None:
        client, root, file = world.tenant(), world.root(), File()
        await world.adopt(root)
        assert not world.adoption.take_sent(root, PID, client.handle, Sent(file, None))
        assert file.closed == 1
        assert PID not in world.adoption.lending

    in_a_daemon(test)


def test_the_file_of_a_process_that_has_ended_is_of_no_use() -> None:
    async def test(world: World) -> None:
        file = File()
        assert not world.adoption.take_sent(world.root(), 1 << 22, 1, Sent(file, None))
        assert file.closed == 1

    in_a_daemon(test)


def test_lent_files_are_closed_at_the_end() -> None:
    async def test(world: World) -> None:
        files.append(File())
        assert world.adoption.take_sent(world.root(), PID, 1, Sent(files[0], None))

    files: list[File] = []
    in_a_daemon(test)
    assert files[0].closed == 1


def test_who_may_not_be_borrowed_from_is_an_error_unless_it_lends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        client, root, file = world.tenant(), world.root(), File()

        def denied(pid: int, pidfd: int, fd: int) -> int:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(world.borrower, "borrow", denied)
        with pytest.raises(NoPermissionError):
            await world.adopt(root)
        assert world.nothing_is_left()

        def adopt(fd: int) -> FakeFile:
            os.close(fd)
            copy = world.rm.file()
            copy.clients = world.rm.processes[PID][8].clients
            return copy

        monkeypatch.setattr(world.rm, "adopt", adopt)
        assert world.adoption.take_sent(root, PID, client.handle, Sent(file, None))
        await world.adopt(root)
        (task,) = world.tasks()
        assert (task.task.key.pid, task.reached_by) == (PID, "lent")

    in_a_daemon(test)


def test_what_nobody_waits_for_is_closed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        file = File()
        world.adoption.take_sent(None, PID, 1, Sent(file, limited(tmp_path, 1 << 30)))
        assert file.closed == 1
        assert PID not in world.adoption.lending

    in_a_daemon(test)
