"""One user who makes Runlist work hard: the others notice nothing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.client import Client
from runlist.errors import RunlistError
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import NOBODY, As, Commands, Daemon, Worker, group_of_nobody, needs_root

pytestmark = [needs_root, pytest.mark.skipif(ON_NVIDIA, reason="its control files are the emulated GPU's")]

Start = Callable[..., Worker]

_MANY_FILES = """
import os, socket, sys
path, count, user = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kept = []
for _ in range(count):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(path)
    kept.append(one)
os.setresgid(user, user, user)
os.setresuid(user, user, user)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shared_daemon(start_daemon: Callable[..., Daemon]) -> Daemon:
    """Root's daemon, with a socket that nobody's group may use."""
    return start_daemon("--group", group_of_nobody())


@pytest.fixture
def crowd(commands: Commands) -> Iterator[Callable[[int, int], list[int]]]:
    """Starts processes of nobody, with so many control files each; their process ids."""
    started: list[subprocess.Popen[str]] = []

    def start(processes: int, files: int) -> list[int]:
        path = Path(commands.environment["RUNLIST_EMULATED_GPU"]) / "nvidiactl"
        words = [sys.executable, "-c", _MANY_FILES, str(path), str(files), str(NOBODY)]
        mine = [
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
        ]
        started.extend(mine)
        for process in mine:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        return [process.pid for process in mine]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def as_nobody_in_the_background(requests: list[Callable[[Client], object]]) -> list[threading.Thread]:
    """Each request of nobody on a connection of its own, whatever comes of it."""

    def ask(request: Callable[[Client], object]) -> None:
        def child() -> None:
            with contextlib.suppress(RunlistError), Client.open() as client:
                request(client)

        with contextlib.suppress(Exception):
            As(NOBODY)(child)

    threads = [threading.Thread(target=ask, args=(request,), daemon=True) for request in requests]
    for thread in threads:
        thread.start()
    return threads


def test_many_control_files_hold_up_nobody_else(
    shared_daemon: Daemon, crowd: Callable[[int, int], list[int]], worker: Start
) -> None:
    pids = crowd(7, 150)
    victims = [worker() for _ in range(3)]
    as_nobody_in_the_background([lambda client, pid=pid: client.attach(pid, "batch", wait=True) for pid in pids])
    time.sleep(1)
    took = []
    for victim in victims:
        started = time.monotonic()
        assert shared_daemon.client.attach(victim.pid, "batch")
        took.append(time.monotonic() - started)
        victim.wait_for_progress()
    asked = []
    for _ in range(50):
        started = time.monotonic()
        shared_daemon.client.status()
        asked.append(time.monotonic() - started)
        time.sleep(0.01)
    print("attach", took, "status", sorted(asked)[-3:])
    assert max(took) < 5
