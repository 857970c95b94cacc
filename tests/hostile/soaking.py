"""Who takes part when three users do random things: tenants, users, and daemons that live for a while."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fixtures.daemon import NOBODY, PATIENCE_S, ROOT, Commands, Worker

SETTLED_S = 120.0
"""From this age on a daemon's memory is to stay as it is."""


class Tenant(Worker):
    """A worker of some user, and what is known of it."""

    def __init__(self, commands: Commands, folder: Path, user: int, before: list[str]) -> None:
        folder.mkdir()
        super().__init__(commands.environment, folder, before=before)
        self.user, self.launched = user, bool(before)
        self.worker = int(self.do("who")["pid"])
        self.do("hint 0")  # what that needs is loaded while it may be read
        if user:
            self.do(f"setuid {user}")
        self.open = self.working = True
        self.suspended: bool | None = False
        """None: not known, since the daemon was asked by two at a time, or died."""
        self.children: list[int] = []

    @property
    def pid(self) -> int:
        return self.worker

    def end(self) -> None:
        """Kill it and its children."""
        for pid in (*self.children, self.worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.launched:
            self.process.wait(PATIENCE_S)
        self.kill()


class User:
    """A process that asks as a user."""

    def __init__(self, commands: Commands, uid: int) -> None:
        self.uid = uid
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.asker", str(uid), str(NOBODY)],
            cwd=ROOT,
            env={**commands.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()

    def ask(self, method: str, *arguments: Any, **named: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([method, arguments, named]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], f"no answer for user {self.uid}"
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def descriptors(pid: int) -> Counter[str]:
    """What a process has open, by kind, but for its links to the processes that it started: a daemon starts its
    actuator when the first latency task is watched, a nursery when the first stranger asks, and by that a relay for
    each user, with a channel and a pidfd.
    """
    found: Counter[str] = Counter()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found[os.readlink(fd).partition(":")[0]] += 1
    started = _children(pid)
    relays = [relay for one in started for relay in _children(one)]
    return found - Counter(socket=len(started) + len(relays), anon_inode=len(relays))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def resident(pid: int) -> int:
    """Resident memory, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Life:
    """One daemon's, and what it had at the times when nothing was managed."""

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self.seconds = seconds
        self.opened: dict[int, Counter[str]] = {}
        """Descriptors, by process, at the last look."""
        self.managed = False
        """Whether it ever had a task. It opens the GPU's log for the first, for good."""
        self.settled: dict[int, int] = {}
        """Resident bytes at the first look after SETTLED_S."""

    @property
    def age(self) -> float:
        return time.monotonic() - self.began

    @property
    def over(self) -> bool:
        return self.age > self.seconds
