"""Clients that misbehave: whatever they send or leave out, the one daemon of all these tests serves the others."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from runlist import __version__, wire
from runlist.client import Client
from runlist.frames import MAX_FRAME
from runlist.planes.process.region import create
from tests.fixtures.daemon import PATIENCE_S, Commands, Daemon, wait_for
from tests.fixtures.lasting import commands, daemon

__all__ = ["commands", "daemon"]

NO_TASKS = msgspec.json.encode(wire.Tasks([], version=__version__))


@pytest.fixture
def raw(daemon: Daemon, commands: Commands) -> Iterator[socket.socket]:
    """A connection that speaks for itself; afterwards the daemon must still serve a decent client."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(commands.socket))
        sock.settimeout(60)
        sock.sendall(wire.encode(wire.GetStatus()))
        assert sock.recv(1 << 16)  # it is accepted: descriptors may be counted from here
        yield sock
    assert daemon.client.status().pid == daemon.pid
    with Client.open() as client:
        assert client.ps() == []
    assert "Traceback" not in daemon.log.read_text()


def descriptors(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def hung_up(sock: socket.socket) -> bool:
    """Whether the daemon hangs up, whatever it says before."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(1 << 16):
            pass
    return True


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        frame(b""),
        frame(b"null"),
        frame(b"{}"),
        frame(b'{"type":"Nonsense"}'),
        frame(b'{"type":"Detach"}'),
        frame(b'{"type":"Detach","pid":"1"}'),
        frame(b'{"type":"Tasks","tasks":[]}'),  # an answer, not a request
        frame(b"\xff\xfe\x00"),
        frame(b"[" * 100_000),
        frame(b'{"type":"Change","pid":1,"settings":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}"),
        struct.pack("<I", MAX_FRAME + 1),
        struct.pack("<I", 0xFFFFFFFF),
        wire.encode(wire.Borrowed()),  # nobody asked
        wire.encode(wire.Borrowed(13)),
    ],
    ids=range(16),
)
def test_garbage_is_hung_up_on(raw: socket.socket, garbage: bytes) -> None:
    raw.sendall(garbage)
    assert hung_up(raw)


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"Detach","pid":-1}',
        b'{"type":"Detach","pid":0}',
        b'{"type":"Attach","pid":18446744073709551615,"settings":{"class":"batch"}}',
        b'{"type":"Attach","pid":4194305,"settings":{"class":"batch"}}',
        b'{"type":"Attach","pid":4194305,"settings":{"class":"\\u0000"}}',
        b'{"type":"Change","pid":1,"settings":{"\\u0000":"\\ud83d\\ude00"}}',
        b'{"type":"UsePolicy","name":"../../etc/passwd","options":{}}',
        b'{"type":"UsePolicy","name":"/dev/zero.py","options":{}}',
        b'{"type":"UsePolicy","name":"\\u0000.py","options":{}}',
        b'{"type":"Launch","pid":4194305,"settings":{"class":"batch"}}',
    ],
)
def test_nonsense_in_good_form_is_answered(raw: socket.socket, body: bytes) -> None:
    raw.sendall(frame(body))
    connection = wire.Connection(raw)
    answer = connection.receive()
    assert answer is not None
    assert b'"type":"Failure"' in answer
    connection.send(wire.GetStatus())
    assert b'"type":"DaemonStatus"' in (connection.receive() or b"")


NONE = 1 << 22  # no process has this id


def launch(pid: int, *, region: bool = True) -> bytes:
    return wire.encode(wire.Launch(pid, {}, region))


@pytest.mark.parametrize(
    ("message", "count"),
    [(launch(NONE), 0), (launch(NONE), 2), (launch(NONE, region=False), 1), (wire.encode(wire.GetStatus()), 1)],
    ids=["missing", "two", "unannounced", "elsewhere"],
)
def test_a_descriptor_comes_with_a_launch_that_names_it_and_nowhere_else(
    raw: socket.socket, daemon: Daemon, message: bytes, count: int
) -> None:
    before = descriptors(daemon)
    socket.send_fds(raw, [message], [0] * count)
    assert hung_up(raw)
    wait_for(lambda: descriptors(daemon) < before)


def test_a_region_that_is_none_is_refused_and_closed(raw: socket.socket, daemon: Daemon, tmp_path: Path) -> None:
    before = descriptors(daemon)
    (tmp_path / "short").write_bytes(b"x" * 1000)
    for path, flags, told in (
        ("/dev/null", os.O_RDWR, "it is no file"),
        (tmp_path / "short", os.O_RDWR, "it has 1000 bytes"),
        (tmp_path / "short", os.O_RDONLY, "not open for reading and writing"),
        (tmp_path, os.O_RDONLY, "it is no file"),
    ):
        fd = os.open(path, flags)
        socket.send_fds(raw, [launch(os.getpid())], [fd])
        os.close(fd)
        answer = wire.Connection(raw).receive() or b""
        assert b"the memory region is refused: " in answer
        assert told.encode() in answer
    wait_for(lambda: descriptors(daemon) == before)


def test_launches_that_nobody_waits_for_leave_nothing(daemon: Daemon, commands: Commands, raw: socket.socket) -> None:
    before = descriptors(daemon)
    made = [create(commands.folder, strict=True) for _ in range(10)]
    for path, region in made:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(commands.socket))
            socket.send_fds(sock, [launch(NONE)], [region.fileno()])
        region.close()
        path.unlink()
    wait_for(lambda: descriptors(daemon) == before)


def test_half_a_frame_and_then_nothing(raw: socket.socket) -> None:
    raw.sendall(wire.encode(wire.ListTasks())[:-1])
    raw.shutdown(socket.SHUT_WR)
    assert hung_up(raw)


def test_a_frame_byte_by_byte(raw: socket.socket) -> None:
    for byte in wire.encode(wire.ListTasks()):
        raw.sendall(bytes([byte]))
        time.sleep(0.001)
    assert wire.Connection(raw).receive() == NO_TASKS


def test_hanging_up_before_the_answer(daemon: Daemon, commands: Commands, raw: socket.socket) -> None:
    before = descriptors(daemon)
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(commands.socket))
            sock.sendall(wire.encode(wire.ListTasks()))
    wait_for(lambda: descriptors(daemon) <= before, "the daemon to close what was hung up")


def test_saying_nothing_keeps_nobody_waiting(daemon: Daemon, commands: Commands, raw: socket.socket) -> None:
    silent = [socket.socket(socket.AF_UNIX) for _ in range(50)]
    for sock in silent:
        sock.connect(str(commands.socket))
    assert daemon.client.ps() == []
    for sock in silent:
        sock.close()


def test_never_reading_the_answers_does_not_fill_the_daemons_memory(daemon: Daemon, raw: socket.socket) -> None:
    request = wire.encode(wire.GetStatus()) * 100
    with contextlib.suppress(OSError):  # sooner or later it hangs up, or takes no more
        raw.settimeout(1)
        for _ in range(2000):
            raw.sendall(request)
    with open(f"/proc/{daemon.pid}/status") as status:
        resident_kb = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    assert resident_kb < 150_000


@pytest.mark.parametrize("message", [wire.ListTasks(), wire.Borrowed()])
def test_descriptors_that_nobody_asked_for_do_not_stay(
    daemon: Daemon, commands: Commands, raw: socket.socket, message: wire.Message
) -> None:
    before = descriptors(daemon)
    for _ in range(30):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(commands.socket))
            with contextlib.suppress(OSError):
                for _ in range(20):
                    socket.send_fds(sock, [wire.encode(message)], [0] * 16, socket.MSG_NOSIGNAL)
    wait_for(lambda: descriptors(daemon) <= before, "the daemon to close them")
    socket.send_fds(raw, [wire.encode(message)], [0] * 16)
    assert hung_up(raw)


def test_random_bytes(daemon: Daemon, commands: Commands, raw: socket.socket) -> None:
    chance = random.Random(7)
    good = [wire.encode(message) for message in (wire.ListTasks(), wire.GetStatus(), wire.Detach(1), wire.Release())]
    for _ in range(200):
        stream = bytearray(b"".join(chance.choices(good, k=3)))
        for _ in range(chance.randrange(4)):
            stream[chance.randrange(len(stream))] = chance.randrange(256)
        with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
            sock.connect(str(commands.socket))
            sock.sendall(stream)


def test_a_launcher_that_does_not_answer_is_not_waited_for_long(
    daemon: Daemon, commands: Commands, raw: socket.socket
) -> None:
    """It says that it launches, and then only listens: the daemon's own right is enough here, so nothing is asked."""
    connection = wire.Connection(raw)
    connection.send(wire.Launch(os.getpid(), {"class": "batch"}))
    assert connection.receive() == NO_TASKS
    connection.send(wire.Launch(os.getpid(), {"class": "batch"}))
    assert b"managed already" in (connection.receive() or b"")
    daemon.client.release()


def test_a_daemon_that_is_stopped_is_named(commands: Commands, daemon: Daemon) -> None:
    """As by Ctrl-Z in its terminal: whoever waits for it is told why."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        process = commands.start("ps")
        assert process.stderr is not None
        assert select.select([process.stderr], [], [], PATIENCE_S)[0]
        line = process.stderr.readline()
        assert f"process {daemon.pid}, is stopped" in line
        assert f"`kill -CONT {daemon.pid}`" in line
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert process.communicate(timeout=60) == ("no tasks\n", "")
    assert process.returncode == 0


def test_a_file_where_the_socket_should_be(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could be managed by way of it, and nobody is told that nothing is."""
    file = tmp_path / "daemon.sock"
    file.write_text("")
    monkeypatch.setitem(commands.environment, "RUNLIST_SOCKET", str(file))
    assert commands.fails(2, "ps").startswith(f"{file} is not a socket: remove it")
