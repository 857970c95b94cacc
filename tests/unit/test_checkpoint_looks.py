"""Who waits to checkpoint a suspended process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from runlist.daemon.tasks.managed import SuspendedBy
from runlist.daemon.tree.checkpoints import Checkpoints
from tests.fixtures.adoption import World, in_a_daemon, own_usage

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

TENANT = """
import os, sys
print(flush=True)
for line in sys.stdin:
    os.open(line.strip(), os.O_RDONLY)
    print(flush=True)
"""


@contextlib.contextmanager
def opening() -> Iterator[subprocess.Popen[str]]:
    """A process that opens what it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", TENANT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def holding(fd: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has a descriptor."""
    with subprocess.Popen(["sleep", "60"], pass_fds=[fd]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_who_waits_to_checkpoint_a_suspended_process_is_told() -> None:
    async def test(world: World) -> None:
        checkpoints = Checkpoints(world.processes)
        with opening() as process, contextlib.ExitStack() as stack:
            world.tenant(process.pid, 20)
            root = world.root(process.pid)
            await world.adopt(root, process.pid)
            (task,) = world.tasks()

            def opens(path: str) -> None:
                process.stdin.write(path + "\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                process.stdout.readline()  # type: ignore[union-attr]

            await checkpoints.look()
            task.suspend_for(SuspendedBy.USER)
            await checkpoints.look()
            opens("/dev/null")
            await checkpoints.look()
            assert task.waiting == ""  # a file is no pipe
            reader, writer = os.pipe()
            stack.callback(os.close, reader)
            asking = stack.enter_context(holding(writer))
            opens(f"/proc/{os.getpid()}/fd/{reader}")
            os.close(writer)
            await checkpoints.look()
            assert f"process {asking.pid} (sleep 60) waits to checkpoint it" in task.waiting
            assert f"`runlist resume {process.pid}`" in task.waiting
            await checkpoints.look()
            assert task.waiting
            asking.kill()
            asking.wait()
            opens("/dev/null")
            await checkpoints.look()
            assert task.waiting == ""
            task.waiting = "somebody"
            task.let_go(SuspendedBy.USER)
            await checkpoints.look()
            assert task.waiting == ""
            world.processes.remove_root(root)
            await checkpoints.look()

    in_a_daemon(test)
