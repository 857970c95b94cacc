"""Processes that let the daemon wait when it asks the kernel for their words: that costs their own user, and once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.integrations.node.cgroups import mount
from runlist.proc import patience
from tests.fixtures.daemon import NOBODY, needs_root, wait_for

pytestmark = needs_root

_SLEEPER = """
import os, sys, time
os.setresgid(*3 * [int(sys.argv[1])])
os.setresuid(*3 * [int(sys.argv[1])])
print("ready", flush=True)
time.sleep(99)
"""

Start = Callable[..., int]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts processes of a user, with words that run them, and gives their ids; nobody let us wait so far."""
    monkeypatch.setattr(patience, "_silent", {})
    started: list[subprocess.Popen[str]] = []

    def begin(uid: int, *before: str) -> int:
        words = [*before, sys.executable, "-c", _SLEEPER, str(uid)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    yield begin
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def hang() -> Iterator[Callable[[], str]]:
    """A question that is not answered before the end of the test."""
    gate = threading.Event()
    yield lambda: str(gate.wait())
    gate.set()


def here() -> str:
    return "here"


def test_one_user_does_not_silence_another(start: Start, hang: Callable[[], str]) -> None:
    assert patience.ask(start(NOBODY), hang, "nothing") == "nothing"
    assert patience.ask(os.getpid(), here, "nothing") == "here"
    assert patience.ask(start(NOBODY), here, "nothing") == "nothing"


def test_a_user_with_many_pid_namespaces_is_waited_for_once(start: Start, hang: Callable[[], str]) -> None:
    pids = [start(NOBODY, "unshare", "--pid", "--fork") for _ in range(6)]
    below = [int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]) for pid in pids]
    assert len({os.stat(f"/proc/{pid}/ns/pid").st_ino for pid in below}) == len(below)
    began = time.monotonic()
    for pid in below:
        assert patience.ask(pid, hang, "nothing") == "nothing"
    assert time.monotonic() - began < 5 * patience.PATIENCE_S


@pytest.fixture
def put() -> Iterator[Callable[[int, str, int], None]]:
    """Puts a process into a container's cgroup, below one of a user."""
    top = mount() / f"runlist-patience-{os.getpid()}"

    def into(pid: int, container: str, owner: int) -> None:
        folder = top / str(owner) / container
        try:
            folder.mkdir(parents=True, exist_ok=True)
            os.chown(folder.parent, owner, owner)
            (folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")

    yield into
    for folder, _, _ in os.walk(top, topdown=False):
        for pid in Path(folder, "cgroup.procs").read_text().split():
            (mount() / "cgroup.procs").write_text(pid)
        os.rmdir(folder)


def test_a_pod_does_not_silence_others_that_run_as_the_same_user(
    start: Start, hang: Callable[[], str], put: Callable[[int, str, int], None]
) -> None:
    """Images have a user in them: those of many strangers are number 1000."""
    hostile, other = start(NOBODY), start(NOBODY)
    put(hostile, "a" * 64, 0)
    put(other, "b" * 64, 0)
    assert patience.ask(hostile, hang, "nothing") == "nothing"
    assert patience.ask(other, here, "nothing") == "here"
    assert patience.ask(hostile, here, "nothing") == "nothing"


def test_a_user_with_many_containers_is_waited_for_once(
    start: Start, hang: Callable[[], str], put: Callable[[int, str, int], None]
) -> None:
    one, other = start(NOBODY), start(NOBODY)
    put(one, "a" * 64, NOBODY)
    put(other, "b" * 64, NOBODY)
    assert patience.ask(one, hang, "nothing") == "nothing"
    assert patience.ask(other, here, "nothing") == "nothing"


def test_nobody_is_asked_while_a_question_to_them_is_open(
    start: Start, hang: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such question keeps a thread."""
    monkeypatch.setattr(patience, "SILENCE_S", 0.0)
    pids, before = [start(NOBODY) for _ in range(patience.MOST_OPEN + 1)], threading.active_count()
    for _ in range(3):
        assert patience.ask(pids[0], hang, "nothing") == "nothing"
    assert threading.active_count() == before + 1
    for pid in pids:
        assert patience.ask(pid, hang, "nothing") == "nothing"
    assert threading.active_count() == before + patience.MOST_OPEN
    assert patience.ask(os.getpid(), here, "nothing") == "here"


def test_one_that_answered_late_is_asked_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SILENCE_S", 0.0)
    pid = start(NOBODY)
    assert patience.ask(pid, lambda: str(time.sleep(3 * patience.PATIENCE_S)), "nothing") == "nothing"
    wait_for(lambda: patience.ask(pid, here, "nothing") == "here")
