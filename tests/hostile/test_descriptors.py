"""Users who want others to wait: descriptors that take long to close, connections without end, half a frame."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import resource
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.harness import attacks
from runlist import wire
from runlist.client import Client
from runlist.errors import RunlistError
from runlist.frames import MAX_REQUEST
from runlist.planes.process.region import create
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import NOBODY, Commands, Daemon, group_of_nobody, refusal, running, wait_for
from tests.fixtures.effort import TIMES

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or ON_NVIDIA, reason="needs root, to become other users")

VICTIM = 54321
ATTACKERS = itertools.count(54400)
SECONDS = 0.5
BOUND_S = 1.0
MOST_MIB = 40


def as_user(uid: int, function: Callable[[], Any]) -> Any:
    """What a function returns, or the exception that it raises, in a process of a user in nobody's group."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            attacks.become(uid, NOBODY)
            os.write(writer, pickle.dumps(function()))
        except BaseException as error:
            os.write(writer, pickle.dumps(f"{error!r}: {error}"))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        value = pickle.loads(pipe.read())
    os.waitpid(pid, 0)
    return value


@pytest.fixture
def open_daemon(start_daemon: Callable[..., Daemon], commands: Commands) -> Daemon:
    """Root's daemon, with a socket that nobody's group may use."""
    daemon = start_daemon("--group", group_of_nobody())
    as_user(VICTIM, lambda: Client.open().status().pid)  # her relay is there
    return daemon


def again_and_again() -> list[float]:
    """How long requests take: on one connection, and with a new one, as `run` makes them."""
    latencies = []
    end = time.monotonic() + SECONDS * TIMES
    with Client.open(patience_s=60) as client:
        while time.monotonic() < end:
            began = time.monotonic()
            client.status()
            latencies.append(time.monotonic() - began)
            began = time.monotonic()
            with Client.open(patience_s=60) as another:
                another.launch(os.getpid(), "batch")
            latencies.append(time.monotonic() - began)
            client.detach(os.getpid())
            time.sleep(0.01)
    return latencies


def bound() -> float:
    """How long a request may take while somebody attacks: more where it takes long anyway."""
    latencies = as_user(VICTIM, again_and_again)
    assert isinstance(latencies, list), latencies
    return BOUND_S + 10 * max(latencies)


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def test_others_are_served_during_every_attack(open_daemon: Daemon, commands: Commands) -> None:
    bound_s = bound()
    before = resident_mib(open_daemon.pid)
    for name, attack in attacks.ATTACKS.items():
        with attacks.under(attack, commands.folder, next(ATTACKERS), NOBODY):
            time.sleep(0.2)
            latencies = as_user(VICTIM, again_and_again)
        assert isinstance(latencies, list), (name, latencies)
        assert max(latencies) < bound_s, name
        assert resident_mib(open_daemon.pid) < before + MOST_MIB, name
    assert open_daemon.client.status().pid == open_daemon.pid
    log = open_daemon.log.read_text()
    assert "Traceback" not in log
    assert len(log) < 200_000


@pytest.mark.parametrize("name", ["datagrams", "joins"])
def test_roots_datagrams_hold_nobody_up(open_daemon: Daemon, commands: Commands, name: str) -> None:
    """Those of most containers are: all that they reach is the socket for messages."""

    def launch_with_a_region() -> float:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            _, region = create(Path(folder), strict=True)
        began = time.monotonic()
        with Client.open(patience_s=60) as client:
            client.launch(os.getpid(), None, {"memory": "1G"}, region.fileno())
        return time.monotonic() - began

    bound_s = bound()
    with attacks.under(attacks.ATTACKS[name], commands.folder, 0, 0):
        time.sleep(1.0)
        latencies = as_user(VICTIM, again_and_again)
        launched = as_user(VICTIM, launch_with_a_region)
    assert isinstance(latencies, list), latencies
    assert max(latencies) < bound_s
    assert launched < bound_s


def test_the_daemon_ends_at_once_whatever_waits_in_its_sockets(open_daemon: Daemon, commands: Commands) -> None:
    keeper = open_daemon.keeper
    with contextlib.ExitStack() as stack:
        for name in ("datagrams", "unread", "halves"):
            stack.enter_context(attacks.under(attacks.ATTACKS[name], commands.folder, next(ATTACKERS), NOBODY))
        time.sleep(0.5)
        began = time.monotonic()
        open_daemon.process.send_signal(signal.SIGTERM)
        assert open_daemon.process.wait(60) == 0
        assert time.monotonic() - began < 15
    wait_for(lambda: not running(keeper), "the keeper to end")


# -- what strangers are for ------------------------------------------------------------------------


def test_a_strangers_region_passes_and_what_is_none_is_refused(open_daemon: Daemon) -> None:
    def launch() -> list[str]:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            _, region = create(Path(folder), strict=True)
        answers = []
        tcp = socket.socket()
        bad = [os.open("/dev/null", os.O_RDWR), os.open("/dev/shm", os.O_PATH), tcp.fileno(), os.memfd_create("x")]
        for fd in [*bad, os.open("/proc/self/status", os.O_RDONLY), region.fileno()]:
            try:
                with Client.open() as client:
                    client.launch(os.getpid(), None, {"memory": "1G"}, fd)
                    client.set(os.getpid(), {"memory": "2G"})
                answers.append("")
            except RunlistError as error:
                answers.append(str(error).removeprefix("the memory region is refused: "))
        snapshot = region.read()
        return [*answers, str(snapshot.memory)]

    assert as_user(VICTIM, launch) == [
        "it is no file",
        "it is not open",
        "it is no file",
        "others may write to it",
        "it is on a file system that a program or another machine serves",
        "",
        str(2 << 30),
    ]


# -- limits ----------------------------------------------------------------------------------------


def test_a_request_has_32_kib(open_daemon: Daemon, commands: Commands) -> None:
    def too_long() -> list[bytes]:
        heard = []
        for length in (MAX_REQUEST - 4, MAX_REQUEST - 3, 15 << 20, 0xFFFF_FFFF):
            with attacks.connected(commands.folder) as sock, contextlib.suppress(OSError):
                sock.settimeout(60)
                body = wire.encode(wire.GetStatus())[4:].ljust(min(length, MAX_REQUEST))
                sock.sendall(struct.pack("<I", length) + body)
                heard.append(sock.recv(1 << 20)[4:24])
        return heard

    for uid in (VICTIM, 0):
        first, *others = as_user(uid, too_long)
        assert first.startswith(b'{"type":"DaemonSta'), first
        assert not any(others)


def test_so_many_connections_and_no_more(open_daemon: Daemon, commands: Commands) -> None:
    def count() -> tuple[int, str]:
        socks = [attacks.connected(commands.folder) for _ in range(300)]
        served = 0
        for sock in socks:
            sock.settimeout(60)
            with contextlib.suppress(OSError):
                sock.sendall(wire.encode(wire.GetStatus()))
            served += b'"type":"DaemonStatus"' in sock.recv(100)
        return served, refusal(lambda: Client.open().status())

    assert as_user(next(ATTACKERS), count) == (256, "you have 256 connections to the daemon: end some")
    wait_for(lambda: as_user(VICTIM, lambda: isinstance(Client.open().status().pid, int)))


def test_without_strangers_there_is_no_relay(daemon: Daemon) -> None:
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    assert [int(child) for child in children] == [daemon.keeper]


def test_without_descriptors_nothing_ends(open_daemon: Daemon, commands: Commands) -> None:
    """Neither the daemon, nor what it does for those who are there; a keeper that is killed meanwhile comes back."""
    pid = open_daemon.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    keeper = open_daemon.keeper
    with attacks.under(attacks.connections, commands.folder, next(ATTACKERS), NOBODY), contextlib.ExitStack() as stack:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 2, before[1]))
        os.kill(keeper, signal.SIGKILL)
        for _ in range(20):  # none of which may be accepted, nor even come in beside the attacker's
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(str(commands.socket))
        end = time.monotonic() + 2
        while time.monotonic() < end:
            assert open_daemon.client.status().pid == pid
            time.sleep(0.1)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    wait_for(lambda: running(open_daemon.keeper) and open_daemon.keeper != keeper, "another keeper")
    assert isinstance(as_user(VICTIM, again_and_again), list)
    assert open_daemon.log.read_text().count("\n") < 200
