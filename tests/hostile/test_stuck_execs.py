"""A process that hangs in the middle of its exec, where it closes a file whose server it is itself: whoever asks the
kernel when it began, what it has open or what it runs waits for that, and no daemon is to.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.harness import fuse
from runlist.client import Client
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import NOBODY, As, Daemon, Worker, group_of_nobody, needs_others, wait_for

pytestmark = [
    needs_others,
    pytest.mark.skipif(ON_NVIDIA, reason="another user's worker is the emulated GPU's"),
    pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK | os.W_OK), reason="needs /dev/fuse"),
]


@contextlib.contextmanager
def never_closed(folder: Path) -> Iterator[Path]:
    """A file that nobody is done closing before the end; then there is `closing` beside it."""

    def answer(code: int, body: bytes) -> bytes | None:
        del body
        if code == fuse.FLUSH:
            (folder / "closing").touch()
            time.sleep(100)
        return None

    with fuse.served(folder / "file", answer, mode=0o666, threads=2) as path:
        yield path


@pytest.mark.parametrize("managed", [True, False])
def test_who_hangs_in_its_exec_has_nobody_wait(
    start_daemon: Callable[..., Daemon], worker: Callable[..., Worker], short_path: Path, managed: bool
) -> None:
    daemon = start_daemon("--group", group_of_nobody())
    hostile, victim = worker(), worker()
    hostile.do(f"setuid {NOBODY}")
    if managed:
        As(NOBODY)(lambda: [client.attach(hostile.pid, "batch") for client in [Client.open()]] and None)
    with never_closed(short_path) as file:
        hostile.do(f"hold {file}")
        hostile.send("exec")
        wait_for((short_path / "closing").exists, "the exec to hang")
        with Client.open(patience_s=5) as client:
            assert [task.pid for task in client.attach(victim.pid, "batch")] == [victim.pid]
            until = time.monotonic() + 2.5  # every second all that is managed is looked at
            while time.monotonic() < until:
                assert victim.pid in {task.pid for task in client.ps()}
                time.sleep(0.1)
            later = worker()  # who comes now is found as ever
            assert [task.pid for task in client.attach(later.pid, "batch")] == [later.pid]
    daemon.check_log()
