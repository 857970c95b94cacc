"""Programs whose first thread ends before others, and threads that have descriptors of their own: they are managed as
all others are, and nobody gets out of it so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.proc import borrow, descriptors
from runlist.proc.process import owner_of, start_of
from runlist.proc.words import command_line
from runlist.views.structs import TaskView
from tests.fixtures.daemon import Daemon, Worker, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

Start = Callable[..., Worker]
WAYS = ["ends", "apart", "closes"]


def task_of(daemon: Daemon, pid: int) -> TaskView | None:
    return next((task for task in daemon.client.ps() if task.pid == pid), None)


@pytest.mark.parametrize("how", WAYS)
def test_a_gpu_that_is_opened_then_is_found(daemon: Daemon, worker: Start, how: str) -> None:
    tenant = worker(idle=True)
    tenant.do(f"thread {how}")
    tenant.do("open")
    daemon.client.attach(tenant.pid, "batch")
    task = task_of(daemon, tenant.pid)
    assert task is not None
    assert task.channels > 0
    daemon.client.suspend(tenant.pid)
    tenant.assert_stopped()
    daemon.client.resume(tenant.pid)
    tenant.wait_for_progress()


@pytest.mark.parametrize("how", ["ends", "closes"])
def test_who_is_managed_stays_so(daemon: Daemon, worker: Start, how: str) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    daemon.client.suspend(tenant.pid)
    tenant.do(f"thread {how}")
    with pytest.raises(AssertionError, match="did not come true"):
        wait_for(lambda: task_of(daemon, tenant.pid) is None, timeout=3.0)  # files are checked every second
    tenant.assert_stopped()
    daemon.client.resume(tenant.pid)
    tenant.wait_for_progress()
    assert tenant.quit()


def test_a_process_lives_as_long_as_a_thread(worker: Start) -> None:
    tenant = worker(idle=True)
    before = command_line(tenant.pid)
    tenant.do("thread ends")
    wait_for(lambda: Path(f"/proc/{tenant.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert start_of(tenant.pid) is not None
    assert owner_of(tenant.pid) == os.getuid()
    assert command_line(tenant.pid) == before


def test_descriptors_of_another_table() -> None:
    """The numbers of one thread are not those of another."""
    script = """
import ctypes, os, sys, threading
def apart():
    ctypes.CDLL(None).unshare(0x400)
    os.dup2(os.memfd_create("theirs"), 50)
    print("ready", flush=True)
    threading.Event().wait()
os.dup2(os.memfd_create("ours"), 50)
threading.Thread(target=apart, daemon=True).start()
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        numbers = sorted(descriptors.numbers(process.pid), reverse=True)  # the first thread's are the lowest
        found = {target: number for number, target in numbers if "memfd" in target and number & 0xFFFF == 50}
        ours, theirs = found["/memfd:ours (deleted)"], found["/memfd:theirs (deleted)"]
        assert ours == 50
        assert theirs != ours
        pidfd = borrow.open_process(process.pid)
        for number in (ours, theirs):
            copy = borrow.borrow(pidfd, number)
            assert os.readlink(f"/proc/self/fd/{copy}") == os.readlink(descriptors.path(process.pid, number))
            assert borrow.still_has(process.pid, number, copy)
            os.close(copy)
        os.close(pidfd)
        process.kill()


def test_most_processes_have_one_table() -> None:
    waiting = threading.Event()
    threads = [threading.Thread(target=waiting.wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    numbers = [number for number, _ in descriptors.numbers(os.getpid())]
    waiting.set()
    assert len(numbers) == len(set(numbers))
    assert max(numbers) < 1 << 32
