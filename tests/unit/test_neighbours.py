"""Several daemons on one GPU: whether one of them is alone with a slice shorter than a switch."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

from runlist import byte_lock
from runlist.daemon.gpu.neighbours import Neighbours

GPU = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def shared(tmp_path: Path) -> list[Path]:
    """The last one is the one."""
    (tmp_path / "gpu").touch(0o444)
    return [tmp_path / "none", tmp_path / "gpu"]


def test_who_wants_one_beside_another_goes_without(shared: list[Path]) -> None:
    one, other = Neighbours(shared, GPU), Neighbours(shared, GPU)
    assert one.may_have_tiny(True)
    assert other.may_have_tiny(False), "nor does one that wants none hear of any"
    assert not one.changed()
    assert not other.may_have_tiny(True)
    assert one.alone
    assert one.changed()
    assert not one.alone
    assert not one.changed()
    assert other.may_have_tiny(False)
    assert one.changed()
    assert one.alone


def test_who_keeps_others_from_the_lock_has_nobody_alone(shared: list[Path]) -> None:
    """Else a stranger could have the tasks of two daemons stop each other."""
    one, other = Neighbours(shared, GPU), Neighbours(shared, GPU)
    with shared[-1].open("r+b") as stranger:
        assert byte_lock.lock(stranger.fileno(), zlib.crc32(GPU.encode()))
        for each in (one, other):
            assert not each.may_have_tiny(True)
            assert not each.changed()
    assert one.changed()
    assert one.alone
    assert not other.changed(), "which has the lock by now"
    assert other.may_have_tiny(False)


def test_one_that_ends_however_leaves_the_others_alone(shared: list[Path]) -> None:
    one = Neighbours(shared, GPU)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        other = Neighbours(shared, GPU)
        other.may_have_tiny(True)
        os.write(ready[1], b".")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert not one.may_have_tiny(True)
    os.write(done[1], b".")
    os.waitpid(child, 0)
    assert one.changed()
    assert one.alone
    one.close()


def test_gpus_are_told_apart_and_one_is_closed(shared: list[Path]) -> None:
    one, other, third = Neighbours(shared, GPU), Neighbours(shared, GPU[:-1] + "2"), Neighbours(shared, GPU)
    assert one.may_have_tiny(True)
    assert other.may_have_tiny(True)
    one.close()
    one.close()
    assert third.may_have_tiny(True)


@pytest.mark.parametrize("paths", [[], [Path("/no/such/file")]])
def test_without_a_file_one_is_alone(paths: list[Path]) -> None:
    one, other = Neighbours(paths, GPU), Neighbours(paths, GPU)
    assert one.may_have_tiny(True)
    assert other.may_have_tiny(True)
    assert not one.changed()
    one.close()
