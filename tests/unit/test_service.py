"""What the daemon says to the service manager that started it, and which socket it takes from it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.daemon import service
from runlist.daemon.service import ServiceManager
from runlist.errors import UsageError

ME = str(os.getpid())


@pytest.fixture
def hears(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(60)
        yield made


def test_each_thing_is_said_in_the_managers_words(hears: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: 7_654_321)
    manager = ServiceManager({"NOTIFY_SOCKET": hears.getsockname()})
    for say, heard in (
        (lambda: manager.ready("policy fair\non nvidia"), "READY=1\nSTATUS=policy fair on nvidia"),
        (manager.reloading, "RELOADING=1\nMONOTONIC_USEC=7654"),
        (manager.stopping, "STOPPING=1"),
        (manager.alive, "WATCHDOG=1"),
    ):
        say()
        assert hears.recv(1000).decode() == heard


def test_a_manager_without_a_file_is_told_too() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind(f"\0runlist-test-{ME}")
        abstract.settimeout(60)
        ServiceManager({"NOTIFY_SOCKET": f"@runlist-test-{ME}"}).alive()
        assert abstract.recv(100) == b"WATCHDOG=1"


def test_nobody_waits_for_a_manager_that_takes_nothing(hears: socket.socket) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": hears.getsockname()})
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5000):
        manager.alive()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("variables", "every_s"),
    [
        ({"WATCHDOG_USEC": "400000"}, 0.2),  # twice in the time that it waits
        ({"WATCHDOG_USEC": "400000", "WATCHDOG_PID": ME}, 0.2),
        ({"WATCHDOG_USEC": "400000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "9" * 17}, 49999999999.9999995),
        ({"WATCHDOG_USEC": "9" * 18}, None),
        ({}, None),
    ],
)
def test_how_often_the_manager_wants_to_hear(variables: dict[str, str], every_s: float | None) -> None:
    assert ServiceManager(variables).alive_every_s == every_s
    assert variables == {}


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ServiceManager]]:
    """A manager that passes these sockets on, from whatever number on; they are ours no more."""
    made: list[int] = []

    def pass_on(*sockets: socket.socket, pid: str = ME) -> ServiceManager:
        first = 500
        for place, one in enumerate(sockets):
            os.dup2(one.fileno(), first + place, inheritable=True)
            made.append(first + place)
        monkeypatch.setattr(service, "_FIRST_FD", first)
        variables = {"LISTEN_PID": pid, "LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": "runlist.socket"}
        manager = ServiceManager(variables)
        assert variables == {}
        return manager

    yield pass_on
    for fd in made:
        try:
            os.close(fd)
        except OSError:
            continue


def listening(path: Path, kind: int = socket.SOCK_STREAM, listens: bool = True) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    if listens:
        made.listen()
    return made


def test_the_socket_at_its_path_is_taken_and_no_child_has_it(
    passed: Callable[..., ServiceManager], tmp_path: Path
) -> None:
    with listening(tmp_path / "runlist.sock") as one:
        manager = passed(one)
        assert manager.listens
        assert not os.get_inheritable(500)
        taken = manager.listener(tmp_path / "runlist.sock")
        assert taken is not None
        with taken, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(tmp_path / "runlist.sock"))
            taken.accept()[0].close()


def test_what_is_no_listener_at_its_path_is_refused(passed: Callable[..., ServiceManager], tmp_path: Path) -> None:
    wanted = tmp_path / "runlist.sock"
    one, other = listening(tmp_path / "one"), listening(tmp_path / "other")
    quiet, datagrams = listening(tmp_path / "quiet", listens=False), listening(tmp_path / "d", socket.SOCK_DGRAM, False)
    network = socket.create_server(("127.0.0.1", 0))
    for sockets, said in (
        ((one, other), "2 sockets were passed to the daemon: name one ListenStream alone"),
        ((one,), f"the daemon was passed '{tmp_path}/one': make it ListenStream={wanted}"),
        ((quiet,), f"the socket that was passed to the daemon is no ListenStream={wanted}"),
        ((datagrams,), f"the socket that was passed to the daemon is no ListenStream={wanted}"),
        ((network,), f"the socket that was passed to the daemon is no ListenStream={wanted}"),
    ):
        with pytest.raises(UsageError) as refused:
            passed(*sockets).listener(wanted)
        assert str(refused.value) == said
    with open(os.devnull) as file:
        os.dup2(file.fileno(), 500)
    with pytest.raises(UsageError, match="cannot be used: Socket operation on non-socket"):
        ServiceManager({"LISTEN_PID": ME, "LISTEN_FDS": "1"}).listener(wanted)
    for each in (one, other, quiet, datagrams, network):
        each.close()


def test_what_is_meant_for_another_process_is_not_taken(passed: Callable[..., ServiceManager], tmp_path: Path) -> None:
    with listening(tmp_path / "runlist.sock") as one:
        manager = passed(one, pid="1")
        assert not manager.listens
        assert manager.listener(tmp_path / "runlist.sock") is None
