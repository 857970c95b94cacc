"""A user with many numbers: the subordinate ones that most distributions give to each for their containers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from runlist.client import Client
from runlist.daemon.relay.relays import MAX_RELAYS
from runlist.daemon.tree.processes import MAX_TREES
from runlist.planes.process import region
from runlist.proc import owners
from runlist.proc.owners import Owner, may_answer_for, user_behind
from runlist.proc.process import descendants
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import (
    NOBODY,
    As,
    Commands,
    Daemon,
    Refused,
    group_of_nobody,
    needs_others,
    needs_root,
    task_of,
    wait_for,
)

FIRST, COUNT = 2_000_000, 1000
ANOTHER = 54321
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000

_HOLD = """
import ctypes, os, sys, time
os.setgroups([])
os.setresgid(*3 * [int(sys.argv[1])])
os.setresuid(*3 * [int(sys.argv[1])])
print(os.getpid(), flush=True)
sys.stdin.readline()
cuda, context, at = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(240 << 20)), flush=True)
time.sleep(99)
"""


def test_the_file_says_who_has_which_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "subuid"
    monkeypatch.setattr(owners, "SUBORDINATE", path)
    assert user_behind(100_000) == 100_000
    path.write_text(
        "root:1000000:65536\n1001:100000:10\nnobody:200000:1\n\nno such user:1:100\n1002:0:10\n1003:junk:1\n1004:5\n"
        "1005:300000:99999999999999999999\n"
    )
    assert [user_behind(uid) for uid in (99_999, 100_000, 100_009, 100_010)] == [99_999, 1001, 1001, 100_010]
    assert [user_behind(uid) for uid in (200_000, 0, 5, 300_000, 1_000_000)] == [NOBODY, 0, 5, 300_000, 1_000_000]
    assert Owner.of(os.getpid(), 100_003) == Owner(1001)
    assert [may_answer_for(user, 100_003) for user in (0, 1001, 100_003, 100_004, NOBODY)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    path.write_text("1006:100000:10\n")
    os.utime(path, (1, 1))
    assert user_behind(100_003) == 1006


def _with_numbers(path: Path) -> Callable[[], None]:
    """Has a process that is about to start see this file as the one of subordinate numbers."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        assert libc.unshare(_CLONE_NEWNS) == 0
        assert libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
        assert libc.mount(os.fsencode(path), os.fsencode(owners.SUBORDINATE), None, _MS_BIND, None) == 0

    return prepare


@pytest.fixture
def shared_daemon(commands: Commands, start_daemon: Callable[..., Daemon], tmp_path: Path) -> Daemon:
    """Root's daemon, for nobody's group; nobody has many numbers."""
    if not owners.SUBORDINATE.exists():
        pytest.skip(f"needs {owners.SUBORDINATE}, to put another one over it")
    numbers = tmp_path / "subuid"
    numbers.write_text(f"{NOBODY}:{FIRST}:{COUNT}\n")
    commands.options = {"preexec_fn": _with_numbers(numbers)}
    daemon = start_daemon("--group", group_of_nobody())
    commands.options = {}
    return daemon


@contextlib.contextmanager
def connected(path: Path, uids: range) -> Iterator[list[socket.socket]]:
    """A connection of each of these users, who are in nobody's group."""
    made: list[socket.socket] = []
    before = os.getgroups()
    try:
        os.setgroups([NOBODY])
        for uid in uids:
            os.seteuid(uid)
            try:
                made.append(socket.socket(socket.AF_UNIX))
                made[-1].connect(str(path))
            finally:
                os.seteuid(0)
        os.setgroups(before)
        yield made
    finally:
        os.setgroups(before)
        for one in made:
            one.close()


@needs_root
def test_all_numbers_of_a_user_have_one_relay(shared_daemon: Daemon, commands: Commands) -> None:
    with connected(commands.socket, range(FIRST, FIRST + MAX_RELAYS)):
        time.sleep(0.5)

        assert As(ANOTHER, NOBODY)(lambda: Client.open().status().pid) == shared_daemon.pid


@needs_root
def test_all_numbers_of_a_user_have_one_share_of_trees(shared_daemon: Daemon) -> None:
    uids = [FIRST + each % COUNT for each in range(MAX_TREES + 1)]
    sleepers = [subprocess.Popen(["sleep", "1000"], user=uid) for uid in uids]

    def attach(uid: int, pid: int) -> None:
        As(uid, NOBODY)(lambda: Client.open().attach(pid, "batch", wait=True))

    try:
        for uid, sleeper in list(zip(uids, sleepers, strict=True))[:-1]:
            attach(uid, sleeper.pid)
        with pytest.raises(Refused, match=f"{MAX_TREES} commands and attached processes of yours"):
            attach(uids[-1], sleepers[-1].pid)
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.fixture
def nested(commands: Commands, tmp_path: Path) -> Iterator[tuple[TextIO, TextIO]]:
    """A process with one of nobody's numbers that holds what it likes, below one of nobody's with 100 MiB."""
    gpu = Path(commands.environment["RUNLIST_EMULATED_GPU"])
    rights = {each: each.stat().st_mode for each in (gpu.parent, gpu, *gpu.iterdir())}
    for each in rights:
        each.chmod(0o711 if each.is_dir() else 0o666)
    path, opened = region.create(tmp_path, strict=False)
    os.chown(path, NOBODY, NOBODY)
    os.set_inheritable(opened.fileno(), True)
    launched, ready = os.pipe()
    words = [sys.executable, "-c", _HOLD, str(FIRST)]
    streams = [os.pipe(), os.pipe()]
    launcher = os.fork()
    if launcher == 0:
        try:
            below = subprocess.Popen(words, env=commands.environment, stdin=streams[0][0], stdout=streams[1][1])
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            with Client.open() as client:
                client.launch(os.getpid(), "batch", {"memory": "100M"}, opened.fileno())
                os.write(ready, b"1")
                below.wait()
                time.sleep(99)
        finally:
            os._exit(1)
    os.close(ready)
    assert os.read(launched, 1) == b"1"
    with open(streams[0][1], "w") as tell, open(streams[1][0]) as told:
        yield tell, told
    for each, mode in rights.items():
        each.chmod(mode)
    for pid in descendants([launcher])[launcher]:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(launcher, 0)


@needs_others
@pytest.mark.skipif(ON_NVIDIA, reason="it is another user on the emulated GPU alone")
def test_another_number_does_not_lead_out_of_a_memory_limit(
    shared_daemon: Daemon, nested: tuple[TextIO, TextIO]
) -> None:
    tell, told = nested
    pid = int(told.readline())
    tell.write("\n")
    tell.flush()
    assert told.readline() == "0\n"  # nothing in it keeps the limit
    wait_for(lambda: any(task.pid == pid and task.suspended for task in shared_daemon.client.ps()), "it to be off")
    told_why = re.compile(r"suspended: its tree holds \S+ MiB with a limit of 100\.0 MiB")
    wait_for(lambda: told_why.match(task_of(shared_daemon, pid).why), "the reason")
