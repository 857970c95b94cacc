"""A daemon that a service manager starts: it takes its socket, and says when it is ready, alive, and at its end."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist.client import Client
from runlist.daemon.service import ServiceManager
from runlist.errors import UsageError
from tests.fixtures.daemon import PATIENCE_S, Commands, wait_for

START = """
import os, sys
fds = [int(word) for word in sys.argv[1].split(",") if word]
for place, fd in enumerate(fds):
    os.dup2(fd, 3 + place)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(fds))} if fds else {}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""What a service manager does last: the sockets from 3 on, and the id of the very process that is to take them."""


class Manager:
    """A service manager's side: it listens, hears, and starts."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self.hears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.hears.bind(f"\0runlist-test-{os.getpid()}")
        self.said: list[str] = []
        self.sockets: list[socket.socket] = []

    def listen(self, path: Path) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.bind(str(path))
        made.listen()
        self.sockets.append(made)
        return made

    def start(self, *listeners: socket.socket, words: tuple[str, ...] = ("-m", "runlist.cli", "daemon")) -> None:
        fds = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, 40) for one in listeners]
        environment = {
            **self.commands.environment, "NOTIFY_SOCKET": f"@runlist-test-{os.getpid()}", "WATCHDOG_USEC": "400000",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, ",".join(map(str, fds)), *words],
            env=environment, pass_fds=fds, cwd="/", stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        for fd in fds:
            os.close(fd)

    def hear(self, line: str) -> None:
        def heard() -> bool:
            while select.select([self.hears], [], [], 0.05)[0]:
                self.said += self.hears.recv(4096).decode().splitlines()
            return any(one.startswith(line) for one in self.said)

        wait_for(heard, line)

    def close(self) -> str:
        """End it; what it logged."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        log = self.process.communicate(timeout=PATIENCE_S)[1]
        return str(log)


@pytest.fixture
def manager(commands: Commands) -> Iterator[Manager]:
    made = Manager(commands)
    yield made
    if made.process.returncode is None:
        made.process.kill()
        made.process.communicate()
    for one in (made.hears, *made.sockets):
        one.close()


def test_it_says_that_it_is_ready_and_alive_and_stops(manager: Manager, commands: Commands) -> None:
    manager.start()
    manager.hear("READY=1")
    manager.hear("STATUS=policy priority")
    manager.said.clear()
    manager.hear("WATCHDOG=1")
    with Client.open() as client:
        assert client.status().pid == manager.process.pid
        assert "NOTIFY_SOCKET" not in Path(f"/proc/{client.status().keeper_pid}/environ").read_text()
    assert "Traceback" not in manager.close()
    assert manager.process.returncode == 0
    manager.hear("STOPPING=1")
    assert not commands.socket.exists()


def test_it_says_when_it_reads_its_rules_again(manager: Manager, commands: Commands) -> None:
    rules = commands.folder / "rules.toml"
    rules.write_text("")
    manager.start(words=("-m", "runlist.cli", "daemon", "--rules", str(rules)))
    manager.hear("READY=1")
    for text, status in (('[[rule]]\nset = { class = "batch" }\n', "STATUS=the rules were read"), ("[", "STATUS=/")):
        rules.write_text(text)
        manager.said.clear()
        manager.process.send_signal(signal.SIGHUP)
        manager.hear("RELOADING=1")
        manager.hear("MONOTONIC_USEC=")
        manager.hear("READY=1")
        manager.hear(status)
    manager.close()


def test_a_loop_that_stands_still_is_silent(manager: Manager) -> None:
    manager.start()
    manager.hear("READY=1")
    manager.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: not select.select([manager.hears], [], [], 0.5)[0] or manager.hears.recv(4096) is None, "silence")
    manager.process.send_signal(signal.SIGCONT)
    manager.said.clear()
    manager.hear("WATCHDOG=1")
    manager.close()


def test_who_connects_before_it_runs_is_served_and_the_socket_stays(manager: Manager, commands: Commands) -> None:
    listener = manager.listen(commands.socket)
    early = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    early.connect(str(commands.socket))
    for _ in range(2):  # a second one takes the same socket
        manager.start(listener)
        manager.hear("READY=1")
        with Client.open() as client:
            assert client.status().pid == manager.process.pid
        assert "Traceback" not in manager.close()
        assert manager.process.returncode == 0
        assert commands.socket.is_socket()
        manager.said.clear()
    early.close()


@pytest.mark.parametrize("wrong", ["elsewhere", "two", "no listener", "datagrams", "a file"])
def test_a_socket_that_is_not_its_own_is_refused(
    manager: Manager, commands: Commands, tmp_path: Path, wrong: str
) -> None:
    if wrong == "a file":
        with (tmp_path / "file").open("w") as file:
            manager.start(file)  # type: ignore[arg-type]
    elif wrong == "datagrams":
        manager.start(manager.hears)
    elif wrong == "no listener":
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        manager.sockets.append(plain)
        manager.start(plain)
    else:
        listeners = [manager.listen(commands.folder / "a"), manager.listen(commands.folder / "b")]
        manager.start(*listeners[: 2 if wrong == "two" else 1])
    log = manager.process.communicate(timeout=PATIENCE_S)[1]
    assert manager.process.returncode == 2
    assert "ListenStream" in log or "cannot be used" in log
    assert "Traceback" not in log
    assert not commands.socket.exists()


def test_variables_for_another_process_are_none() -> None:
    variables = {
        "LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "WATCHDOG_PID": "1", "WATCHDOG_USEC": "5000000",
        "NOTIFY_SOCKET": "nonsense", "PATH": "/bin",
    }  # fmt: skip
    manager = ServiceManager(variables)
    assert variables == {"PATH": "/bin"}
    assert manager.alive_every_s is None
    assert manager.listener(Path("/run/x")) is None
    manager.ready("to nobody")
    for gone in ("/nonexistent/notify", "@nobody-listens-here", "vsock:2:1234"):
        ServiceManager({"NOTIFY_SOCKET": gone}).ready("to nobody")


@pytest.mark.parametrize("text", ["", "-1", "a", "9" * 30, "0", "\u0663"])
def test_numbers_that_are_none(text: str) -> None:
    manager = ServiceManager({"WATCHDOG_USEC": text, "LISTEN_FDS": text, "LISTEN_PID": str(os.getpid())})
    assert manager.alive_every_s is None
    assert manager.listener(Path("/run/x")) is None


def test_only_so_many_sockets_are_looked_at() -> None:
    manager = ServiceManager({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "100000000"})
    with pytest.raises(UsageError, match="ListenStream"):
        manager.listener(Path("/run/x"))
