"""What a process sent of itself: its region and its control file go to its tree, and what is of no use is closed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runlist.daemon.tree.descriptors import Sent
from runlist.planes.process.region import Region, create
from tests.fixtures.adoption import PID, World, in_a_daemon, own_usage

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
        world.adoption.take_sent(root, PID, 1, Sent(first, None))
        world.adoption.take_sent(root, PID, 1, Sent(again, None))
        world.adoption.take_sent(root, PID, 2, Sent(other, None))
        assert (first.closed, again.closed, other.closed) == (0, 1, 0)
        assert PID in world.adoption.lending
        world.adoption.lending.drop(PID)
        assert (first.closed, other.closed) == (1, 1)

    in_a_daemon(test)


def test_what_nobody_waits_for_is_closed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        file = File()
        world.adoption.take_sent(None, PID, 1, Sent(file, limited(tmp_path, 1 << 30)))
        assert file.closed == 1
        assert PID not in world.adoption.lending

    in_a_daemon(test)
