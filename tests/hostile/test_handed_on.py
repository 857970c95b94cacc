"""A process that leaves what it has on a GPU to a child, and ends, and the child likewise, as quickly as it likes. It
is managed all the time, as one, and no longer than one of them lives.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands, Daemon, daemon, task_of, wait_for

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="a real GPU's context does not survive a fork in a program's hands")
__all__ = ["daemon"]

_PROGRAM = """
import os, sys, time
from runlist.workloads.gpu import Gpu
gpu = Gpu(blocking=True)
print(os.getpid(), flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        if os.fork():
            os._exit(0)
        time.sleep(0.01)
    print(os.getpid(), flush=True)
"""


def test_who_hands_it_on_and_on_is_managed_all_the_time(daemon: Daemon, commands: Commands) -> None:
    words = [sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(
        words, env=commands.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = int(process.stdout.readline())
        daemon.client.attach(first, "batch")
        daemon.client.suspend(first)
        for times in (1, 30, 1):
            process.stdin.write(f"{times}\n")
            process.stdin.flush()
            for _ in range(20):
                assert not task_of(daemon, first).enabled
            holder = int(process.stdout.readline())
            assert holder != first
        assert task_of(daemon, first).suspended
        daemon.client.resume(first)
        wait_for(lambda: task_of(daemon, first).enabled, "it to go on")
        process.stdin.close()
        wait_for(lambda: not daemon.client.ps(), "it to be gone with the last of them")


def test_who_begins_with_that_under_a_command_that_ends_is_managed(daemon: Daemon, commands: Commands) -> None:
    """The command ends with its first process; those that come after it are of nobody, for all that /proc says."""
    begins = _PROGRAM.replace("for line in sys.stdin", "for line in [20]")
    program = f"{begins}\nsys.stdin.read()"
    command = commands.start("run", "--class", "batch", "--", sys.executable, "-c", program, stdin=subprocess.PIPE)
    assert command.stdin is not None
    assert command.stdout is not None
    first = int(command.stdout.readline())
    wait_for(daemon.client.ps, "it to be managed")
    assert int(command.stdout.readline()) != first
    assert [task.task_class for task in daemon.client.ps()] == ["batch"]
    command.stdin.close()
    wait_for(lambda: not daemon.client.ps(), "it to be gone with the last of them")
