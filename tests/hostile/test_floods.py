"""Who fills the queue of the daemon's socket for messages keeps out nobody else's."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from runlist.client import Client
from runlist.daemon.relay.relays import Relays
from runlist.daemon.requests.apart import Apart
from runlist.daemon.requests.messages import FLOOD_PAUSE_S, Kind, Messages, Rests, TenantMessage
from runlist.paths import messages_apart
from runlist.planes.process.region import create
from runlist.protocol import environment_autogen as names
from runlist.tenant import candidates
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import NOBODY, PATIENCE_S, As, Commands, Daemon, group_of_nobody, needs_root, wait_for
from tests.fixtures.ear import CloseHere

ANOTHER = 54321
HINT = TenantMessage(Kind.HINT, 0, 1, 5).encode()


def fill(path: Path) -> str:
    """Send to a socket until there is no room; else what stands in the way."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(str(path))
            while True:
                sock.send(HINT)
        except BlockingIOError:
            return "full"
        except PermissionError:
            return "not ours"


def named() -> Path:
    """The socket that a command is told of, once the daemon has answered."""
    with Client.open() as client:
        client.status()
        return client.messages


def say_once(path: Path) -> str:
    """Whether there was room for one message, as a tenant sends it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.connect(str(path))
        try:
            sock.send(HINT)
        except BlockingIOError:
            return "full"
        return "sent"


@needs_root
def test_a_user_who_floods_keeps_out_nobody_elses_messages(
    start_daemon: Callable[..., Daemon], commands: Commands
) -> None:
    daemon = start_daemon("--group", group_of_nobody())
    theirs, mine, roots = (
        As(NOBODY)(named),
        As(ANOTHER, NOBODY)(named),
        named(),
    )
    daemon.process.send_signal(signal.SIGSTOP)  # a daemon is no quicker than who floods
    try:
        state = Path(f"/proc/{daemon.pid}/stat")
        wait_for(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
        shared = commands.folder / names.MESSAGES_SOCKET
        assert [As(NOBODY)(partial(fill, path)) for path in (shared, theirs, mine, roots)] == [
            "full",
            "full",
            "not ours",
            "not ours",
        ]
        assert As(ANOTHER, NOBODY)(partial(say_once, mine)) == "sent"
        assert say_once(roots) == "sent"
    finally:
        daemon.process.send_signal(signal.SIGCONT)


@needs_root
def test_a_socket_apart_hears_descriptors_by_way_of_the_relay(short_path: Path, on_device: None) -> None:
    short_path.chmod(0o711)
    path, region = create(short_path, strict=True)
    os.chown(path, NOBODY, NOBODY)
    heard: list[tuple[int, TenantMessage]] = []

    def send(to: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(str(to))
            socket.send_fds(sock, [TenantMessage(Kind.JOIN, 0, 1, 7).encode()], [region.fileno()])

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Semaphore(0)

        def take(pid: int, uid: int, message: TenantMessage, answer: object) -> bool:
            heard.append((uid, message))
            arrived.release()
            return True

        relays = Relays("nvidia" if ON_NVIDIA else "emulated")
        shared = Messages(short_path / "m.sock", take, CloseHere(), relays)
        stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        stale.bind(str(short_path / "m-7.sock"))  # of a daemon that was killed
        stale.close()

        def make(uid: int) -> Messages:
            return Messages(messages_apart(short_path / "m.sock", uid), take, CloseHere(), relays, user=uid)

        apart = Apart(short_path / "m.sock", make)
        assert not (short_path / "m-7.sock").exists()
        for uid in (NOBODY, NOBODY, ANOTHER):
            apart.hear(uid)
        own = messages_apart(short_path / "m.sock", NOBODY)
        assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (NOBODY, 0o600)
        for to in (own, short_path / "m.sock"):
            await loop.run_in_executor(None, As(NOBODY), partial(send, to))
            await asyncio.wait_for(arrived.acquire(), PATIENCE_S)
        for messages in (apart, shared, relays):
            messages.close()

    asyncio.run(listen())
    assert [(uid, message.kind) for uid, message in heard] == 2 * [(NOBODY, Kind.JOIN)]
    for _, message in heard:
        (fd,) = message.descriptors
        assert os.path.sameopenfile(fd, region.fileno())
        os.close(fd)
    assert not list(short_path.glob("m*.sock"))
    region.close()


def test_of_many_sockets_that_are_flooded_each_rests_longer() -> None:
    rests = Rests()
    assert [rests.begin() for _ in range(3)] == [FLOOD_PAUSE_S * count for count in (1, 2, 3)]
    rests.end()
    assert rests.begin() == FLOOD_PAUSE_S * 3


def test_a_socket_that_cannot_be_given_to_its_user_is_removed(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:  # as in a user namespace, which does not know every user
        raise OSError(errno.EINVAL, "Invalid argument")

    async def test() -> None:
        with pytest.raises(OSError, match="Invalid argument"):
            Messages(short_path / "m", lambda *_: True, CloseHere(), user=5)

    monkeypatch.setattr(os, "chown", refuse)
    asyncio.run(test())
    assert not (short_path / "m").exists()


def test_a_user_for_whom_there_is_no_socket_shares_that_of_all(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def make(uid: int) -> Messages:
        made.append(uid)
        raise OSError(1, "Operation not permitted")

    apart = Apart(short_path / "m.sock", make)
    for _ in range(2):
        apart.hear(5)
    assert made == [5]
    monkeypatch.setenv(names.MESSAGES, str(short_path / "m-5.sock"))
    assert candidates() == [str(short_path / "m-5.sock"), str(short_path / names.MESSAGES_SOCKET)]
    apart.close()
