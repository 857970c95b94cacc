"""Descriptors that processes sent of themselves: kept no longer than they may be, and looked at where nothing hangs."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runlist.daemon.tasks import lending
from runlist.daemon.tasks.lending import Lending
from runlist.daemon.tree.descriptors import Descriptors
from runlist.errors import NoTargetError
from runlist.planes.nvidia.rm.transport import EmulatedDriver
from runlist.planes.process.region import RegionError, create
from runlist.proc import process
from runlist.proc.process import peak_of
from tests.fixtures.adoption import until
from tests.fixtures.daemon import wait_for

# As they are to be: taken from the code they would hold whatever it says.
MAX_FILES = 8
MAX_WAITING = 64

ROOT = 1


class File:
    """An open file of a driver."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


class Driver:
    """Takes sockets; until `goes_on` is set, it hangs at each."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()

    def adopt(self, fd: int) -> File | None:
        self.goes_on.wait()
        if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
            return File(fd)
        os.close(fd)
        return None


def new_file() -> Any:
    ours, theirs = socket.socketpair()
    theirs.close()
    return File(ours.detach())


def new_lending() -> Lending:
    return Lending(Driver())  # type: ignore[arg-type]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """In an event loop; afterwards as many descriptors are open as before."""
    before = len(os.listdir("/proc/self/fd"))

    async def call() -> None:
        await test()

    asyncio.run(call())
    wait_for(lambda: len(os.listdir("/proc/self/fd")) == before)  # a thread closes them


def test_a_lent_file_is_copied_for_whoever_looks(child: subprocess.Popen[bytes]) -> None:
    async def test() -> None:
        lent, file = new_lending(), new_file()
        assert lent.take(ROOT, child.pid, 7, file)
        (copy,) = lent.copies(child.pid)
        assert os.fstat(copy.handle.fileno()).st_ino == os.fstat(file.fileno()).st_ino
        assert copy.handle.fileno() != file.fileno()
        assert (copy.client, copy.key < 0, lent.has(child.pid, copy.key)) == (7, True, True)
        assert child.pid in lent
        assert lent.lent_for(child.pid) >= 0
        copy.handle.close()
        lent.close()
        assert not lent.has(child.pid, copy.key)
        assert (lent.copies(child.pid), lent.lent_for(child.pid)) == ([], -1.0)

    run(test)


def test_there_is_room_for_so_many_and_one_of_each_client(child: subprocess.Popen[bytes]) -> None:
    async def test() -> None:
        lent = new_lending()
        files = [new_file() for _ in range(MAX_FILES + 3)]
        taken = [
            lent.take(ROOT, child.pid, client, file)
            for client, file in zip([0, 0, *range(1, 100)], files, strict=False)
        ]
        assert taken == [True, False, *[True] * (MAX_FILES - 1), False, False]
        for file in (file for file, kept in zip(files, taken, strict=True) if not kept):
            file.close()
        lent.close()

    run(test)


def test_a_tree_has_no_room_beyond_its_own(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(lending, "MAX_TREE_FILES", 2)
        lent, files = new_lending(), [new_file() for _ in range(5)]
        members = [(ROOT, child.pid), (ROOT, os.getpid()), (ROOT, child.pid), (ROOT, os.getppid()), (2, os.getppid())]
        taken = [
            lent.take(*member, client, file) for client, (member, file) in enumerate(zip(members, files, strict=True))
        ]
        assert taken == [True, True, False, False, True]
        assert os.getppid() in lent
        lent.drop(child.pid)
        assert lent.take(ROOT, child.pid, 5, files[2])
        files[3].close()
        lent.close()

    run(test)


def test_it_is_closed_the_moment_the_process_ends(child: subprocess.Popen[bytes]) -> None:
    async def test() -> None:
        lent = new_lending()
        assert lent.take(ROOT, child.pid, 7, new_file())
        child.kill()
        child.wait()
        await until(lambda: child.pid not in lent)

    run(test)


def test_it_is_closed_when_the_process_becomes_another_program(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        peak = 1000
        monkeypatch.setattr(process, "peak_of", lambda pid: peak)
        lent = new_lending()
        assert lent.take(ROOT, child.pid, 7, new_file())
        lent.check()
        peak = 5000
        lent.check()
        lent.check()
        assert child.pid in lent
        peak = 4999  # it starts anew with exec, and else never goes down
        lent.check()
        assert child.pid not in lent
        assert lent.take(ROOT, child.pid, 7, new_file())
        peak = 10
        assert lent.take(ROOT, child.pid, 8, new_file())  # of the new program, which alone counts
        (copy,) = lent.copies(child.pid)
        assert copy.client == 8
        copy.handle.close()
        lent.close()

    run(test)


def test_the_peak_of_a_real_process_starts_anew_with_exec() -> None:
    code = "import mmap, os; m = mmap.mmap(-1, 1 << 32); print(flush=True); input(); os.execlp('sleep', 'sleep', '9')"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        one.stdout.readline()
        before = peak_of(one.pid)
        assert before > 1 << 22
        one.stdin.write(b"\n")
        one.stdin.flush()
        wait_for(lambda: 0 < peak_of(one.pid) < before)
        one.kill()
    assert peak_of(one.pid) == 0


def test_a_process_that_is_gone_lends_nothing() -> None:
    async def test() -> None:
        file = new_file()
        with pytest.raises(NoTargetError):
            new_lending().take(ROOT, 1 << 22, 7, file)
        file.close()

    run(test)


# -- looking at what was sent -----------------------------------------------------------------------


def test_what_is_harmless_is_handed_back_and_the_rest_closed(tmp_path: Path) -> None:
    async def test() -> None:
        looking = Descriptors(Driver())  # type: ignore[arg-type]
        path, region = create(tmp_path, strict=True)
        sent = await looking.joined([new_file().fileno(), os.dup(region.fileno()), os.dup(0), os.dup(0)], os.geteuid())
        assert sent.file is not None
        assert sent.region is not None
        assert sent.region.read() == region.read()
        sent.close()
        path.unlink()
        region.close()
        sent = await looking.joined([os.open("/dev/null", os.O_RDWR)], os.geteuid())
        assert (sent.file, sent.region, sent.trouble) == (None, None, "")
        sent = await looking.joined([new_file().fileno(), os.open("/dev/null", os.O_RDWR)], os.geteuid())
        assert (sent.region, sent.trouble) == (None, "it is no file")
        sent.close()
        with pytest.raises(RegionError, match="it is no file"):
            await looking.region(os.open("/dev/null", os.O_RDWR), os.geteuid())
        looking = Descriptors(EmulatedDriver(tmp_path))
        sent = await looking.joined([os.open("/dev/null", os.O_RDWR)], os.geteuid())  # which no socket can be made of
        assert sent.file is None
        looking.discard([os.dup(0), 12345])
        await looking.joined([], 0)  # behind it

    run(test)


def test_a_file_that_hangs_whoever_touches_it_does_not_hang_the_loop() -> None:
    async def test() -> None:
        driver = Driver()
        driver.goes_on.clear()
        looking = Descriptors(driver)  # type: ignore[arg-type]
        jobs = [asyncio.create_task(looking.joined([new_file().fileno()], 0)) for _ in range(MAX_WAITING)]
        await asyncio.sleep(0.01)
        assert (looking.room, any(job.done() for job in jobs)) == (False, False)
        driver.goes_on.set()
        for sent in await asyncio.gather(*jobs):
            sent.close()
        assert looking.room

    run(test)
