"""A daemon that has no room: few descriptors, no memory, no threads. It says so in one line, or goes on; it never
stands still, takes nobody for gone, and puts everything back."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.client import Client
from tests.fixtures.daemon import (
    DEFAULT_SLICES,
    PATIENCE_S,
    Commands,
    Daemon,
    Slices,
    Worker,
    needs_root,
    refusal,
    wait_for,
)

Start = Callable[..., Worker]
_LEAVES = "import subprocess, sys; subprocess.Popen(sys.argv[1:], stdout=-3, stderr=-3)"
_JOB = (sys.executable, "-m", "runlist.workloads.batch", "--seconds", "60")


def at_most(kind: int, number: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (number, number))


@contextlib.contextmanager
def without(pid: int, kind: int, number: int) -> Iterator[None]:
    """A process may have no more than so much of something, meanwhile."""
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (number, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


@pytest.mark.parametrize("files", [20, 64, 127])
def test_too_few_descriptors_to_start(commands: Commands, files: int) -> None:
    few = at_most(resource.RLIMIT_NOFILE, files)
    said = f"only {files} files may be open (`ulimit -Hn`): a daemon needs 128 at least"
    started = commands.start("--private", module="runlist.daemon", preexec_fn=few)
    assert said in started.communicate(timeout=PATIENCE_S)[1]
    assert said in commands.fails(1, "run", "--", "true", preexec_fn=few)


def test_just_enough_descriptors(commands: Commands, worker: Start) -> None:
    one = worker()
    started = commands.start(module="runlist.daemon", preexec_fn=at_most(resource.RLIMIT_NOFILE, 128))
    wait_for(commands.served, "a socket")
    with Client.open() as client:
        assert [task.pid for task in client.attach(one.pid, "batch")] == [one.pid]
        client.stop()
    assert started.wait(PATIENCE_S) == 0


_MANY = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
while os.dup(0) < 1100:
    pass
for fd in range(3, 1101):
    os.set_inheritable(fd, True)
os.execv(sys.executable, [sys.executable, "-m", "runlist.cli", *sys.argv[1:]])
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1200, reason="needs 1200 descriptors")
@pytest.mark.parametrize("words", [("ps",), ("run", "--", "true"), ("emulator", "--", "true")])
def test_a_command_with_more_descriptors_than_select_takes(
    daemon: Daemon, commands: Commands, words: tuple[str, ...]
) -> None:
    """They are of whoever starts it."""
    done = subprocess.run(
        [sys.executable, "-c", _MANY, *words], env=commands.environment, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
@pytest.mark.parametrize("attached", [True, False])
def test_no_memory(daemon: Daemon, worker: Start, slices: Slices, kind: int, attached: bool) -> None:
    """Also not where an ended thread has left its stack for another, which may be room enough."""
    one, two = worker(), worker()
    for each in (one, two) if attached else (one,):
        daemon.client.attach(each.pid, "batch")
        daemon.client.suspend(each.pid)
    resource.prlimit(daemon.pid, kind, (1 << 20, resource.prlimit(daemon.pid, kind)[1]))
    if not attached:
        assert refusal(lambda: daemon.client.attach(two.pid, "latency")).startswith("the daemon has no room for this")
    daemon.client.set(one.pid, {"timeslice": "7000"})
    daemon.client.resume(one.pid)
    one.wait_for_progress()
    daemon.client.suspend(one.pid)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(PATIENCE_S) == 0
    wait_for(lambda: slices.of(one.pid) == DEFAULT_SLICES, "everything put back")
    one.wait_for_progress()


def test_nobody_is_gone_for_want_of_a_descriptor(daemon: Daemon, commands: Commands, worker: Start) -> None:
    stranger = worker()
    commands.ok("run", "--class", "batch", "--", sys.executable, "-c", _LEAVES, *_JOB)
    wait_for(daemon.client.ps, "a process that was left behind")
    (left,) = daemon.client.ps()
    with without(daemon.pid, resource.RLIMIT_NOFILE, 10):
        assert "does not exist" not in refusal(lambda: daemon.client.attach(stranger.pid, "normal"))
        wait_for(lambda: "a round of looking was left out" in daemon.log.read_text(), "a round without room")
    assert [task.pid for task in daemon.client.ps()] == [left.pid]
    daemon.client.attach(stranger.pid, "normal")
    os.kill(left.pid, signal.SIGKILL)


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    small = ["mount", "-t", "tmpfs", "-o", "mode=700,size=1m,nr_inodes=64", "none", str(folder)]
    if subprocess.run(small, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(folder: Path) -> None:
    """Until it has room for nothing, nor for another file."""
    for number in itertools.count():
        with contextlib.suppress(OSError), (folder / f"fill{number}").open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
        if not (folder / f"fill{number}").exists():
            return


@needs_root
def test_a_disk_that_is_full_costs_nobody_anything(commands: Commands, worker: Start, slices: Slices) -> None:
    """That of the sockets, the log, the regions and the record of changes."""
    one, two = worker(), worker()
    with _small_disk(commands.folder), Daemon(commands) as daemon:
        daemon.client.attach(one.pid, "batch")
        daemon.client.suspend(one.pid)
        _fill(commands.folder)
        daemon.client.attach(two.pid, "latency")
        daemon.client.set(one.pid, {"timeslice": "7000"})
        keeper = daemon.keeper
        os.kill(keeper, signal.SIGKILL)
        wait_for(lambda: daemon.keeper != keeper, "another keeper")
        daemon.client.resume(one.pid)
        one.wait_for_progress()
        daemon.client.suspend(one.pid)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(PATIENCE_S) == 0
        wait_for(lambda: slices.of(one.pid) == slices.of(two.pid) == DEFAULT_SLICES, "everything put back")
        one.wait_for_progress()
