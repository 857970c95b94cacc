"""Regions whose owners hold the file's lock for ever, or have it opened as they like: nobody else waits for that."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.harness import fuse
from runlist.daemon.relay.vet import refusal, vetted
from runlist.planes.process.region import Region, RegionError, create
from runlist.planes.process.region.file import MOST_ROOM
from runlist.planes.process.region.format import FILE_BYTES, HEADER, NO_LIMIT
from runlist.planes.registry import choose_plane
from runlist.proc.process import descendants
from tests.fixtures.daemon import Commands, Daemon, needs_root, wait_for

MiB = 1 << 20
_READ, _PR_SET_PDEATHSIG = 15, 1
_LIMIT = HEADER.offsets["memory_value"]

_KEEP_SIZE, _PUNCH_HOLE = 1, 2

Hold = Callable[[Path], None]


def fallocate(fd: int, mode: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(fd, mode, ctypes.c_long(0), ctypes.c_long(size)) == 0, ctypes.get_errno()


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Has a process of its own write into a file from memory that never comes, which holds the file's lock; until the
    end of the test.
    """
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse")
    asked = tmp_path / "asked"
    holders: list[int] = []

    def answer(code: int, body: bytes) -> bytes | None:
        del body
        if code == _READ:
            asked.touch()
            threading.Event().wait()
        return None

    def start(path: Path) -> None:
        holders.append(os.fork())
        if holders[-1] == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a test that hangs must end, too
            with contextlib.suppress(OSError), never.open("rb") as source, path.open("r+b", buffering=0) as file:
                file.write(mmap.mmap(source.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ))
            os._exit(0)
        wait_for(asked.exists, "the file to be held")

    with fuse.served(tmp_path / "never", answer, mode=0o444, size=MiB, threads=2) as never:
        yield start
        for holder in holders:
            os.kill(holder, signal.SIGKILL)
    for holder in holders:
        os.waitpid(holder, 0)


@pytest.fixture(params=["/dev/shm", "/var/tmp"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """In memory, and on a disk."""
    with tempfile.TemporaryDirectory(dir=request.param) as path:
        yield Path(path)


@needs_root
def test_a_region_is_read_and_written_whoever_holds_its_lock(folder: Path, hold: Hold) -> None:
    path, region = create(folder, strict=True)
    hold(path)
    region.set_memory(100 * MiB)
    region.set_cap(0.5)
    region.set_unseen(0, 7)
    found = region.read()
    assert (found.memory, found.cap) == (100 * MiB, 0.5)
    region.close()


@needs_root
def test_the_daemon_goes_on_while_a_tenant_holds_its_regions_lock(
    commands: Commands, daemon: Daemon, hold: Hold
) -> None:
    """It writes the limit of a tree again whenever that was raised."""
    launcher = commands.start("run", "--memory", "100M", "--", sys.executable, "-c", "input()", stdin=-1)
    regions = commands.folder / "regions"
    wait_for(lambda: list(regions.glob("*.region")) and len(descendants([launcher.pid])[launcher.pid]) > 1, "the tree")
    (path,) = regions.glob("*.region")
    with path.open("r+b") as file:
        written = mmap.mmap(file.fileno(), FILE_BYTES)
    limit = slice(_LIMIT, _LIMIT + 8)
    wait_for(lambda: int.from_bytes(written[limit], "little") == 100 * MiB, "the limit")
    hold(path)
    for _ in range(3):
        written[_LIMIT : _LIMIT + 16] = NO_LIMIT.to_bytes(8, "little") + bytes(8)
        wait_for(lambda: int.from_bytes(written[limit], "little") == 100 * MiB, "the limit to be put back")
        assert daemon.client.status().pid == daemon.pid


def test_a_region_that_cannot_be_opened_anew_is_refused(tmp_path: Path, commands: Commands) -> None:
    """Its owner may hold a lease on it; the sender's own descriptor has the sender's flags, and would wait for it."""
    del commands  # it names the device
    path, region = create(tmp_path, strict=True)
    region.close()
    plane = choose_plane()
    sent = os.open(path, os.O_RDWR | os.O_SYNC)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # who holds a lease is told when somebody comes
    fcntl.fcntl(sent, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    kept = vetted(plane, os.dup(sent), os.geteuid())
    assert "cannot be opened anew" in refusal(kept)
    os.close(kept)
    fcntl.fcntl(sent, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    signal.signal(signal.SIGIO, before)
    kept = vetted(plane, os.dup(sent), os.geteuid())
    assert not fcntl.fcntl(kept, fcntl.F_GETFL) & os.O_SYNC
    Region.adopt(kept, os.geteuid()).close()
    os.close(sent)


def test_a_region_that_is_cut_short_under_a_mapping_is_an_error(folder: Path) -> None:
    path, region = create(folder, strict=True)
    region.set_memory(MiB)
    at = FILE_BYTES - 4096
    os.truncate(path, at)
    with pytest.raises(RegionError, match="bytes, not"):
        region.set_memory(2 * MiB)
    os.truncate(path, 0)
    for _ in range(2):
        with pytest.raises(RegionError, match=r"bytes, not|cannot be used"):
            region.set_unseen(0, 1)
    with pytest.raises(RegionError):
        region.read()
    region.close()


def test_a_region_that_takes_too_much_room_is_written_no_more(folder: Path) -> None:
    """To make a hole of gigabytes takes a second, in which whoever writes into the file waits."""
    path, region = create(folder, strict=True)
    region.set_memory(MiB)
    with path.open("r+b") as file:
        fallocate(file.fileno(), _KEEP_SIZE, 2 * MOST_ROOM)
    assert path.stat().st_size == FILE_BYTES
    with pytest.raises(RegionError, match="takes the room"):
        region.set_memory(2 * MiB)
    with pytest.raises(RegionError, match="takes the room"):
        region.set_unseen(0, 1)
    with pytest.raises(RegionError, match="takes the room"):
        region.read()
    with path.open("r+b") as file:
        fallocate(file.fileno(), _KEEP_SIZE | _PUNCH_HOLE, 2 * MOST_ROOM)
    region.close()


def test_a_child_of_fork_writes_into_its_own_mapping(folder: Path) -> None:
    _, region = create(folder, strict=True)
    region.set_memory(MiB)
    child = os.fork()
    if child == 0:
        region.set_memory(3 * MiB)
        os._exit(0)
    os.waitpid(child, 0)
    assert region.read().memory == 3 * MiB
    region.close()
