"""The record of changed processes: who is put back after daemon and keeper were killed, and who is not."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.daemon.undo.record import Record, settle
from runlist.errors import NoPermissionError, NoTargetError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "daemon.changed"


@pytest.fixture
def child() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "60"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def killed(record: Record) -> None:
    """What is left of a record whose daemon and keeper are gone."""
    os.close(record.fd)
    record.fd = -1


def settled(path: Path, patience_s: float = 5) -> list[int]:
    found: list[int] = []
    before = os.listdir("/proc/self/fd")
    settle(path, found.append, patience_s)
    assert os.listdir("/proc/self/fd") == before
    return found


Child = Callable[[], "subprocess.Popen[bytes]"]


def test_who_is_still_changed_is_put_back(path: Path, child: Child) -> None:
    first, second, third = child(), child(), child()
    record = Record(path)
    for process in (first, first, second, second, third):
        record.add(process.pid)
    for process in (first, first, second):
        record.remove(process.pid)
    last = child()
    record.add(last.pid)  # in the place of the first
    third.kill()
    third.wait()
    killed(record)
    assert sorted(settled(path)) == sorted((second.pid, last.pid))


def test_all_put_back_leaves_nothing_to_do(path: Path, child: Child) -> None:
    process = child()
    record = Record(path)
    record.add(process.pid)
    os.ftruncate(record.fd, 0)  # as the keeper does
    killed(record)
    assert settled(path) == []
    record = Record(path)
    record.close()
    assert not path.exists()
    assert settled(path) == []


def test_another_process_of_that_number_is_left_alone(path: Path) -> None:
    record = Record(path)
    record.add(os.getpid())
    last_digit = os.fstat(record.fd).st_size - 2  # of when it began
    os.pwrite(record.fd, b"1" if os.pread(record.fd, 1, last_digit) == b"0" else b"0", last_digit)
    killed(record)
    assert settled(path) == []


@pytest.mark.parametrize(
    "content", [b"", b"1", b"\xff" * 64, b"\n" * 9, b"-1 -1\n" * 3, b"1 x\n 1 1 1\n", "٣ ٣\n".encode() * 3]
)
def test_what_is_half_written_names_nobody(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert settled(path) == []


def test_a_link_or_a_pipe_is_not_read(path: Path, tmp_path: Path) -> None:
    record = Record(tmp_path / "other")
    record.add(os.getpid())
    path.symlink_to(tmp_path / "other")
    assert settled(path) == []
    path.unlink()
    os.mkfifo(path)
    assert settled(path) == []
    Record(path).close()
    assert (tmp_path / "other").exists()
    record.close()


def test_one_that_cannot_be_put_back_keeps_no_other_from_it(path: Path, child: Child) -> None:
    record = Record(path)
    pids = [child().pid for _ in range(3)]
    for pid in pids:
        record.add(pid)
    killed(record)
    tried: list[int] = []

    def put_back(pid: int) -> None:
        tried.append(pid)
        raise {0: NoTargetError("gone"), 1: NoPermissionError("no right"), 2: OSError(5, "wrong")}[len(tried) - 1]

    settle(path, put_back, 5)
    assert tried == pids


def test_a_keeper_that_is_at_it_is_waited_for(path: Path, child: Child) -> None:
    record = Record(path)
    record.add(child().pid)
    keeper = os.fork()
    if not keeper:
        signal.pause()
    try:
        record.keeper(keeper)
        killed(record)
        waiting = os.fork()
        if not waiting:
            os._exit(len(settled(path)))
        fd = os.open(path, os.O_RDWR)
        os.ftruncate(fd, 0)  # as it does
        os.close(fd)
        os.kill(keeper, signal.SIGKILL)
        assert os.waitpid(waiting, 0)[1] == 0
    finally:
        os.waitpid(keeper, 0)


def test_a_keeper_that_hangs_is_ended(path: Path, child: Child) -> None:
    process = child()
    record = Record(path)
    record.add(process.pid)
    keeper = os.fork()
    if not keeper:
        signal.pause()
    record.keeper(keeper)
    killed(record)
    assert settled(path, 0.05) == [process.pid]
    assert os.WTERMSIG(os.waitpid(keeper, 0)[1]) == signal.SIGKILL


def test_its_lock_lasts_as_long_as_somebody_may_put_back(path: Path) -> None:
    record = Record(path)
    copy = os.dup(record.fd)
    killed(record)
    other = os.open(path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(copy)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_full_disk_costs_the_record_alone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(path)
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, record.fd, inheritable=False)
    os.close(full)
    for _ in range(2):
        record.add(os.getpid())
    for _ in range(2):
        record.remove(os.getpid())
    record.close()
    assert capsys.readouterr().out.count("the next daemon will not know whom this one changed") == 1
