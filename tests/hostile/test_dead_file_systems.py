"""Files of the administrator's on a file system that does not answer any more: a server that is gone, a program that
hangs. The daemon serves on, and ends when it is told to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.client import Client
from tests.fixtures.daemon import PATIENCE_S, Daemon, needs_root, refusal, wait_for

pytestmark = [
    needs_root,
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs /dev/fuse"),
]


@contextlib.contextmanager
def dying(path: Path) -> Iterator[Callable[[], None]]:
    """An empty file at `path`, whose server is stopped by a call."""
    from bench.harness import fuse

    def children() -> set[int]:
        return set(map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()))

    before = children()
    with fuse.served(path, lambda code, body: None, mode=0o444, known_s=0):
        (server,) = children() - before
        yield lambda: os.kill(server, signal.SIGSTOP)


def waiting(pid: int) -> int:
    """How many threads of a process wait for such a server."""
    return sum("request_wait" in (task / "wchan").read_text() for task in Path(f"/proc/{pid}/task").iterdir())


def test_others_are_served_and_it_ends(start_daemon: Callable[..., Daemon], short_path: Path) -> None:
    file = short_path / "file.py"
    with dying(file) as die:
        daemon = start_daemon("--rules", str(file))
        die()
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(lambda: waiting(daemon.pid) == 1, "the rules to be read")
        with Client.open(patience_s=0.2) as client:
            assert "does not answer" in refusal(lambda: client.use_policy(str(file)))
        wait_for(lambda: waiting(daemon.pid) == 2, "the policy to be read")
        assert daemon.client.status().pid == daemon.pid
        daemon.process.terminate()
        assert daemon.process.wait(PATIENCE_S) == 0
