"""Starting and ending threads while memory is short, and whether they have a processor."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from runlist.proc import exhaustion, threads
from runlist.proc.pool import Pool


def full(*_: object, **__: object) -> mmap.mmap:
    raise OSError(12, "Cannot allocate memory")


def test_a_thread_starts_only_where_there_is_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # to be put back
    threads.refuse_without_memory()
    ran = threading.Event()
    thread = threading.Thread(target=ran.set)
    thread.start()
    thread.join()
    assert ran.is_set()

    monkeypatch.setattr(mmap, "mmap", full)
    refused = threading.Thread(target=ran.clear)
    with pytest.raises(RuntimeError) as raised:
        refused.start()
    assert exhaustion.passes(raised.value)
    assert ran.is_set()
    assert not refused.is_alive()


_ENDS = """
import resource, threading, time
from runlist.proc import threads

def turn():
    while True:
        time.sleep(0.0001)

threads.refuse_without_memory()
for _ in range(4):
    threading.Thread(target=turn, daemon=True).start()
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.getrlimit(resource.RLIMIT_AS)[1]))
"""


def test_a_process_without_memory_ends_while_threads_run() -> None:
    """The C library loaded what it needs to end a thread when the first one did, and aborted."""
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_without_room_for_another_thread_work_waits_for_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # to be put back
    threads.refuse_without_memory()
    begun, gate = threading.Event(), threading.Event()
    with Pool(2) as pool:
        first = pool.submit(lambda: begun.set() or gate.wait(60))
        begun.wait()
        monkeypatch.setattr(mmap, "mmap", full)
        second = pool.submit(lambda: "done")
        gate.set()
        assert (first.result(60), second.result(60)) == (True, "done")


def test_a_pool_without_any_thread_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # to be put back
    threads.refuse_without_memory()
    monkeypatch.setattr(mmap, "mmap", full)
    with Pool(2) as pool, pytest.raises(RuntimeError) as raised:
        pool.submit(lambda: "done")
    assert exhaustion.passes(raised.value)


def test_the_kernel_tells_how_long_a_thread_had_no_processor() -> None:
    core = max(os.sched_getaffinity(0))
    told: list[float] = []

    def work() -> None:
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        told.append(threads.without_processor_s(threading.current_thread()))

    hog = os.fork()
    if hog == 0:
        os.sched_setaffinity(0, {core})
        while True:
            pass
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        os.kill(hog, signal.SIGKILL)
        os.waitpid(hog, 0)
    assert told[0] > 0
