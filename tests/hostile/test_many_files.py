"""A suspended process with as many descriptors as a process may have: nobody waits while they are looked at."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from runlist.daemon.tasks.managed import SuspendedBy
from runlist.daemon.tree.checkpoints import Checkpoints
from runlist.proc import pipes
from tests.fixtures.adoption import World, in_a_daemon, own_usage

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

FILES = pipes.MOST + 1000
_MANY = """
import os, resource, sys
count = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
for _ in range(count): os.dup(0)
print(flush=True)
for _ in sys.stdin:
    os.dup(0)
    print(flush=True)
"""


@pytest.fixture
def many() -> Iterator[subprocess.Popen[str]]:
    """A process with so many descriptors, and one more for each line that it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", _MANY, str(FILES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        yield process
        process.kill()


def test_as_many_as_a_process_may_have(many: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[threading.Thread] = []

    def readlink(path: str, ask: object = os.readlink) -> str:
        read.append(threading.current_thread())
        return ask(path)  # type: ignore[operator,no-any-return]

    monkeypatch.setattr(os, "readlink", readlink)

    async def test(world: World) -> None:
        world.tenant(many.pid, 20)
        root = world.root(many.pid)
        await world.adopt(root, many.pid)
        (task,) = world.tasks()
        task.suspend_for(SuspendedBy.USER)
        checkpoints = Checkpoints(world.processes)
        await checkpoints.look()
        assert many.stdin is not None
        assert many.stdout is not None
        print(file=many.stdin, flush=True)
        many.stdout.readline()
        before = len(read)
        await checkpoints.look()
        assert before <= pipes.MOST
        assert len(read) > before
        assert threading.main_thread() not in read
        world.processes.remove_root(root)

    in_a_daemon(test)
