"""The exporter's port: who asks rightly is answered, whoever else is there, and none of them costs much."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import os
import random
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from runlist import wire
from runlist.integrations.exporter import http as server
from runlist.integrations.exporter.http import HEAD_S, MAX_CONNECTIONS, MAX_HEAD
from tests.fixtures.daemon import ROOT, running, short_path, wait_for
from tests.fixtures.fake_daemon import FakeDaemon, fake, start_fake, view

__all__ = ["fake", "short_path", "start_fake"]

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
Start = Callable[..., "Exporter"]


class Exporter:
    """`runlist exporter` on a port of its own."""

    def __init__(self, folder: Path, *words: str, environment: dict[str, str] | None = None) -> None:
        self.log = folder / "exporter.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "runlist.cli", "exporter", "--listen", "127.0.0.1:0", *words],
                stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **(environment or {})},
            )  # fmt: skip
        wait_for(lambda: "metrics on" in self.said or self.process.poll() is not None)
        assert self.process.poll() is None, self.said
        self.port = int(self.said.partition("metrics on ")[2].partition("/metrics")[0].rpartition(":")[2])

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def get(self, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, bytes, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def raw(self, data: bytes) -> bytes:
        """What is answered until the end."""
        with self.connect() as sock:
            with contextlib.suppress(OSError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while more := sock.recv(1 << 16):
                    answer += more
            return answer

    def memory_mb(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def start(fake: FakeDaemon, tmp_path: Path) -> Iterator[Start]:
    """Starts exporters of the fake daemon. Each ends in order, and without a traceback."""
    started: list[Exporter] = []

    def begin(*words: str) -> Exporter:
        folder = tmp_path / f"exporter{len(started)}"
        folder.mkdir()
        started.append(Exporter(folder, *words))
        return started[-1]

    yield begin
    for one in started:
        code = one.end()
        assert "Traceback" not in one.said, one.said
        assert "exception" not in one.said, one.said
        assert code == 0, one.said


def test_pages(start: Start, fake: FakeDaemon) -> None:
    exporter = start()
    status, text, headers = exporter.get()
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"\nrunlist_up 1.0\n" in text
    status, text, _ = exporter.get("/")
    assert status == 200
    assert b'href="/metrics"' in text
    assert exporter.get("/-/healthy")[0] == 200
    assert exporter.get("/metrics?x=1")[0] == 200
    for path in ("/nothing", "/metrics/", "//metrics", "/../etc/passwd", "/%2e%2e/"):
        assert exporter.get(path)[0] == 404
    status, text, headers = exporter.get(method="HEAD")
    assert (status, text) == (200, b"")
    assert int(headers["Content-Length"]) > 1000
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        status, _, headers = exporter.get(method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS, True),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False), ("", False), ("*/*", False),
        ("text/plain, application/openmetrics-text;q=0.1", False), ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False), (";;,,;q=", False), ("application/openmetrics-text", True),
    ],
)  # fmt: skip
def test_formats(shared: Exporter, accept: str, openmetrics: bool) -> None:
    _, text, headers = shared.get(Accept=accept)
    assert headers["Content-Type"].startswith("application/openmetrics-text" if openmetrics else "text/plain")
    assert text.endswith(b"# EOF\n") == openmetrics


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    """An exporter without a daemon, for tests that need none."""
    folder = tmp_path_factory.mktemp("exporter")
    exporter = Exporter(folder, environment={"RUNLIST_SOCKET": str(folder / "none.sock")})
    yield exporter
    assert exporter.end() == 0
    assert "Traceback" not in exporter.said


HEAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", b""), (b"\r\n\r\n", b"400"), (b"GET\r\n\r\n", b"400"), (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\n\r\n", b"400"), (b"\x16\x03\x01\x02\x00" + bytes(600), b"400"),
        (HEAD + b"no colon\r\n\r\n", b"400"), (HEAD + b" folded: x\r\n\r\n", b"400"),
        (HEAD + b"A: " + b"x" * MAX_HEAD + b"\r\n\r\n", b"431"), (b"GET /" + b"x" * (1 << 20), b"431"),
        (HEAD + b"A: b\r\n" * 5000 + b"\r\n", b"431"), (HEAD, b"400"),
        (HEAD + b"Content-Length: -1\r\n\r\n", b"400"), (HEAD + b"Content-Length: 1e3\r\n\r\n", b"400"),
        (HEAD + b"Content-Length: 99999999\r\n\r\n", b"413"), (HEAD + b"Content-Length: 5\r\n\r\nab", b"400"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n", b"501"),
        (HEAD + b"Content-Length: 3\r\n\r\nabc" + HEAD + b"\r\n", b"200"),
        (HEAD + b"Connection: close\r\n\r\n", b"200"), (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", b"404"), (b"GET /metrics HTTP/1.1\r\nAccept: \xff\x00\r\n\r\n", b"200"),
    ],
)  # fmt: skip
def test_broken_requests_are_answered_and_harm_nobody(shared: Exporter, data: bytes, status: bytes) -> None:
    answer = shared.raw(data)
    assert answer.partition(b" ")[2][:3] == status
    assert shared.get()[0] == 200


def test_random_bytes_harm_nobody(shared: Exporter) -> None:
    draw = random.Random(11)
    for _ in range(200):
        length = draw.randrange(0, 400)
        shared.raw(draw.choice([b"", HEAD, b"GET "]) + draw.randbytes(length) + draw.choice([b"", b"\r\n\r\n"]))
    assert shared.get()[0] == 200


def test_a_connection_serves_one_request_after_the_other(start: Start) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", start().port, timeout=60)
    with contextlib.closing(connection):
        for _ in range(5):
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            assert answer.status == 200
            answer.read()


@pytest.mark.parametrize(
    "data", [HEAD + b"Connection: close\r\n\r\n", b"GET /metrics HTTP/1.0\r\n\r\n", b"GET\r\n\r\n"]
)
def test_a_connection_that_is_done_is_ended(shared: Exporter, data: bytes) -> None:
    """Also of who goes on listening."""
    with shared.connect() as sock:
        sock.sendall(data)
        while sock.recv(1 << 16):
            pass


@pytest.mark.parametrize("asked", [b"GET / HTTP/1.1\r\n\r\n", b"GET / HT"])
def test_who_reads_or_asks_too_slowly_is_hung_up_on(asked: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "SEND_S"):
        monkeypatch.setattr(server, name, 0.2)
    large = server.plain(HTTPStatus.OK, "x" * (64 << 20))

    async def answer(_: server.Request) -> server.Response:
        return large

    async def ask() -> int:
        serving = server.Server(answer)
        reader, writer = await asyncio.open_connection(*await serving.listen("127.0.0.1", 0))
        writer.write(asked)
        got = 0
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                for is_over in (lambda tasks: tasks > 1, lambda tasks: tasks == 1):  # the server has one for us
                    while not is_over(len(asyncio.all_tasks())):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                while more := await reader.read(1 << 20):
                    got += len(more)
        writer.close()
        await serving.close()
        return got

    assert asyncio.run(ask()) < len(large.body)


def test_it_ends_though_an_answer_does_not_come() -> None:
    async def ask() -> None:
        asked = asyncio.Event()

        async def answer(_: server.Request) -> server.Response:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        serving = server.Server(answer)
        _, writer = await asyncio.open_connection(*await serving.listen("127.0.0.1", 0))
        writer.write(HEAD + b"\r\n")
        async with asyncio.timeout(60):
            await asked.wait()
            await serving.close()
        writer.close()

    asyncio.run(ask())


def test_a_thousand_connections_that_say_nothing_keep_nobody_out(start: Start) -> None:
    exporter = start()
    exporter.get()
    before = exporter.memory_mb()
    with contextlib.ExitStack() as stack:
        for number in range(1000):
            sock = stack.enter_context(exporter.connect())
            with contextlib.suppress(OSError):
                sock.sendall(b"" if number % 2 else b"GET /metrics HT")
            if number % 100 == 99:
                assert exporter.get()[0] == 200
        assert len(os.listdir(f"/proc/{exporter.process.pid}/fd")) < MAX_CONNECTIONS + 40
        time.sleep(1.1)  # else it is the look of before
        _, text, _ = exporter.get()
        dropped = next(line for line in text.splitlines() if line.startswith(b"runlist_exporter_connections_dropped_t"))
        assert float(dropped.split()[1]) > 800
    assert exporter.memory_mb() < before + 20


def test_those_who_read_nothing_cost_little_memory(start: Start, fake: FakeDaemon) -> None:
    fake.tasks = [view(pid=pid, labels={"pod": "x" * 200 + str(pid)}) for pid in range(1, 500)]
    exporter = start("--per-process", "--max-series", "100000")
    length = len(exporter.get()[1])
    assert length > 2_000_000
    before = exporter.memory_mb()
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS - 4):
            sock = stack.enter_context(exporter.connect())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(HEAD + b"\r\n")
        status, text, _ = exporter.get()
        assert (status, len(text) > 2_000_000) == (200, True)
        assert exporter.memory_mb() < before + 30


def test_many_who_ask_at_once_cost_the_daemon_one_look(start: Start, fake: FakeDaemon) -> None:
    exporter = start()
    began = time.monotonic()
    for _ in range(100):
        exporter.get()
    looks = len(fake.asked(wire.ListTasks))
    assert looks <= 2 + (time.monotonic() - began)


def test_a_daemon_that_is_silent_holds_nobody_up_for_long(start: Start, fake: FakeDaemon) -> None:
    exporter = start()
    fake.answers[wire.ListTasks] = None
    status, text, _ = exporter.get()
    assert status == 200
    assert b"\nrunlist_up 0.0\n" in text
    assert exporter.get("/-/healthy")[0] == 200


def test_a_password(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("prometheus:correct horse\n")
    path.chmod(0o600)
    exporter = start("--password-file", str(path))

    def ask(words: bytes, scheme: str = "Basic") -> int:
        return exporter.get(Authorization=f"{scheme} {base64.b64encode(words).decode()}")[0]

    status, text, headers = exporter.get()
    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="runlist"')
    assert b"runlist_" not in text
    assert ask(b"prometheus:correct horse") == 200
    for wrong in (b"prometheus:", b":", b"", b"prometheus:correct hors", b"x:correct horse"):
        assert ask(wrong) == 401
    assert ask(b"prometheus:correct horse", "Bearer") == 401
    assert exporter.get(Authorization="Basic \xff~")[0] == 401


def make_certificate(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """A certificate, and the exporter's words for it."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        capture_output=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return certificate, ("--tls-cert", str(certificate), "--tls-key", str(key))


def get_by_tls(exporter: Exporter, certificate: Path) -> bytes:
    context = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection("127.0.0.1", exporter.port, context=context, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        return connection.getresponse().read()


def test_tls(start: Start, tmp_path: Path) -> None:
    certificate, words = make_certificate(tmp_path)
    exporter = start(*words)
    assert "https://127.0.0.1:" in exporter.said
    assert b"runlist_up 1.0" in get_by_tls(exporter, certificate)
    assert b"runlist" not in exporter.raw(HEAD + b"\r\n")


def test_those_who_never_shake_hands_keep_nobody_out(start: Start, tmp_path: Path) -> None:
    certificate, words = make_certificate(tmp_path)
    exporter = start(*words)
    resource.prlimit(exporter.process.pid, resource.RLIMIT_NOFILE, (640, 640))
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(exporter.connect())
        took = []
        for _ in range(3):
            began = time.monotonic()
            assert b"runlist_up 1.0" in get_by_tls(exporter, certificate)
            took.append(time.monotonic() - began)
        assert min(took) < HEAD_S / 2
        wait_for(lambda: len(os.listdir(f"/proc/{exporter.process.pid}/fd")) < 2 * MAX_CONNECTIONS)


def test_those_who_never_say_goodbye_keep_nobody_out(start: Start, tmp_path: Path) -> None:
    certificate, words = make_certificate(tmp_path)
    exporter = start(*words)
    context = ssl.create_default_context(cafile=str(certificate))
    with contextlib.ExitStack() as stack:
        for _ in range(2 * MAX_CONNECTIONS):
            plain = stack.enter_context(exporter.connect())
            bare = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            bare.sendall(b"GET /none HTTP/1.0\r\n\r\n")
        assert b"runlist_up 1.0" in get_by_tls(exporter, certificate)
        assert len(os.listdir(f"/proc/{exporter.process.pid}/fd")) < 2 * MAX_CONNECTIONS
        wait_for(lambda: len(os.listdir(f"/proc/{exporter.process.pid}/fd")) < MAX_CONNECTIONS)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("127.0.0.1", "something listens there already: name another port with --listen"),
        ("192.0.2.1", "this machine has no such address"),  # TEST-NET-1
    ],
)
def test_where_it_cannot_listen(start: Start, fake: FakeDaemon, host: str, why: str) -> None:
    address = f"{host}:{start().port}"
    done = subprocess.run(
        [sys.executable, "-m", "runlist.cli", "exporter", "--listen", address],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"runlist: cannot listen on {address}: {why}")


def test_a_file_is_written_again_and_again(fake: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "runlist.prom"
    process = subprocess.Popen(
        [sys.executable, "-m", "runlist.cli", "exporter", "--textfile", str(path), "--every", "1"], cwd=ROOT
    )
    try:
        wait_for(path.exists)
        assert "\nrunlist_up 1.0\n" in path.read_text()
        fake.close()
        wait_for(lambda: "\nrunlist_up 0.0\n" in path.read_text())
        assert [one.name for one in tmp_path.iterdir() if one.suffix == ".prom"] == ["runlist.prom"]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert not running(process.pid)


def test_a_file_that_cannot_be_written_is_said_once_and_tried_again(fake: FakeDaemon, tmp_path: Path) -> None:
    folder, log = tmp_path / "collector", tmp_path / "log"
    folder.mkdir()
    words = ("exporter", "--textfile", str(folder / "runlist.prom"), "--every", "1")
    with log.open("wb") as said:
        process = subprocess.Popen([sys.executable, "-m", "runlist.cli", *words], cwd=ROOT, stderr=said)
    try:
        wait_for((folder / "runlist.prom").exists)
        shutil.rmtree(folder)
        wait_for(lambda: "runlist.prom cannot be written: " in log.read_text())
        time.sleep(2.2)
        assert log.read_text().count("cannot be written") == 1
        folder.mkdir()
        wait_for((folder / "runlist.prom").exists)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    done = subprocess.run(
        [sys.executable, "-m", "runlist.cli", *words[:2], str(tmp_path / "nowhere" / "x.prom")],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert len(done.stderr.splitlines()) == 1
