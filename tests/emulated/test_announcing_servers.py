"""Servers as people write them, and engines behind queues: what comes in is learnt, and health checks told apart."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.proc.process import descendants
from runlist.workloads.process import WorkloadProcess
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands, Daemon, task_of, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="its programs are made for the emulated GPU's pace")

WORK = """
import os, sys, time
from cuda.bindings import driver
from runlist.workloads.accumulator import Accumulator
from runlist.workloads.gpu import Gpu

class Engine:
    def __init__(self):
        gpu = Gpu(0)
        self.context = driver.cuCtxGetCurrent()[1]
        self.work = Accumulator(gpu, blocks=gpu.sm_count)
        self.work.launch(1)
        self.work.synchronize()

    def do(self, what):
        if what == "generate":
            until = time.perf_counter() + 0.002
            while time.perf_counter() < until:
                pass
            driver.cuCtxSetCurrent(self.context)
            self.work.launch(1000)
            self.work.synchronize()
        return "done"

def ready(port=0):
    print(os.getpid(), port, flush=True)

def ask_by_lines(ask):
    for line in sys.stdin:
        what, size = line.split()
        ask(what, os.urandom(int(size)))
        print("done", flush=True)
"""

QUEUE = """
import multiprocessing
from work import *

def serve(requests, answers):
    engine = Engine()
    ready()
    while True:
        what, _ = requests.get()
        answers.put(engine.do(what))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    context.Process(target=serve, args=(requests, answers), daemon=True).start()
    def ask(what, text):
        requests.put((what, text))
        answers.get()
    ask_by_lines(ask)
"""

POOL = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from work import *

def begin():
    global engine
    engine = Engine()
    ready()

def do(what, text):
    return engine.do(what)

if __name__ == "__main__":
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), begin) as pool:
        pool.submit(do, "health", b"").result()
        ask_by_lines(lambda what, text: pool.submit(do, what, text).result())
"""

CHANNEL = """
import socket, ssl, struct
from work import *

engine = Engine()
listener = socket.create_server(("127.0.0.1", 0))
ready(listener.getsockname()[1])
connection, _ = listener.accept()
if len(sys.argv) > 1:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*sys.argv[1:])
    connection = context.wrap_socket(connection, server_side=True)
file = connection.makefile("rb")
while head := file.read(4):
    text = file.read(struct.unpack("!i", head)[0])
    engine.do("generate" if b"generate" in text else "health")
    connection.sendall(b"done")
"""

GRPC = """
import threading
from concurrent import futures
import grpc
from work import *

engine, lock = Engine(), threading.Lock()

def generate(request, context):
    with lock:
        return engine.do("generate").encode()

def check(request, context):
    return b"done"

same = lambda text: text
server = grpc.server(futures.ThreadPoolExecutor(4))
for name, method, function in (("llm.Engine", "Generate", generate), ("grpc.health.v1.Health", "Check", check)):
    handler = grpc.unary_unary_rpc_method_handler(function, same, same)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {method: handler}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
ready(port)
server.wait_for_termination()
"""

PAUSE_S = 0.07
Ask = Callable[[str], None]


def length(what: str) -> int:
    """Of a message. Requests are of one step of lengths as the library knows them, also with what TLS adds: each step
    has to be seen five times.
    """
    return random.randrange(8) if what == "health" else random.randrange(240, 340)


class Served:
    """One of these programs, by its name, under the library in class latency; and the process of it that works."""

    def __init__(self, commands: Commands, daemon: Daemon, folder: Path, text: str, *words: str) -> None:
        (folder / "work.py").write_text(WORK)
        file = folder / "server.py"
        file.write_text(text)
        self.process = commands.start(
            "run", "--class", "latency", "--", sys.executable, str(file), *words, stdin=subprocess.PIPE
        )
        self.daemon = daemon
        self.pid, self.port = map(int, self.line().split())
        wait_for(lambda: any(task.pid == self.pid for task in daemon.client.ps()), "the task")

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def by_lines(self) -> Ask:
        def ask(what: str) -> None:
            assert self.process.stdin is not None
            self.process.stdin.write(
                f"{what} {random.randrange(8) if what == 'health' else random.randrange(200, 400)}\n"
            )
            self.process.stdin.flush()
            assert self.line() == "done\n"

        return ask

    def told(self) -> int:
        """How many announcements there were, as `ps` says; none before there are three."""
        found = re.search(r"of (\d+) were wrong", task_of(self.daemon, self.pid).why)
        return int(found[1]) if found else 0

    def kill(self) -> None:
        for pid in descendants([self.process.pid])[self.process.pid]:
            with contextlib.suppress(ProcessLookupError):  # what it started may just have ended
                os.kill(pid, signal.SIGKILL)


Serve = Callable[..., Served]


@pytest.fixture
def serve(daemon: Daemon, commands: Commands, batch: WorkloadProcess, tmp_path: Path) -> Iterator[Serve]:
    daemon.client.use_policy("priority", {"give_way": "switch", "announce_budget": "0.5"})
    started: list[Served] = []

    def start(text: str, *words: str) -> Served:
        started.append(Served(commands, daemon, tmp_path, text, *words))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def tell_apart(served: Served, ask: Ask) -> None:
    """Requests and health checks in turn: in the end nearly all of the ones are announced, and of the others few."""

    def announced(what: str) -> int:
        before = served.told()
        ask(what)
        time.sleep(PAUSE_S)
        return served.told() - before

    for _ in range(25):
        announced("generate")
        announced("health")
    requests = checks = 0
    for _ in range(15):
        requests += announced("generate")
        checks += announced("health")
    assert requests >= 11
    assert checks <= 3


def test_an_engine_behind_a_queue(serve: Serve) -> None:
    served = serve(QUEUE)
    tell_apart(served, served.by_lines())


def test_a_pool_of_processes(serve: Serve) -> None:
    served = serve(POOL)
    tell_apart(served, served.by_lines())


def by_channel(connection: socket.socket) -> Ask:
    def ask(what: str) -> None:
        text = what.encode() + random.randbytes(length(what))
        connection.sendall(len(text).to_bytes(4, "big") + text)
        assert connection.recv(100) == b"done"

    return ask


def test_messages_with_their_length_before_them(serve: Serve) -> None:
    served = serve(CHANNEL)
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        tell_apart(served, by_channel(connection))


def test_under_tls(serve: Serve, tmp_path: Path) -> None:
    """Only lengths tell them apart."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    words = ("-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", *words], check=True, capture_output=True)
    served = serve(CHANNEL, certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection(("127.0.0.1", served.port))) as connection:
        tell_apart(served, by_channel(connection))


def test_grpc(serve: Serve) -> None:
    """Each frame has a number of its own."""
    import grpc

    served = serve(GRPC)
    with grpc.insecure_channel(f"127.0.0.1:{served.port}") as channel:

        def same(text: bytes) -> bytes:
            return text

        methods = {
            "generate": channel.unary_unary("/llm.Engine/Generate", same, same),
            "health": channel.unary_unary("/grpc.health.v1.Health/Check", same, same),
        }

        def ask(what: str) -> None:
            text = b"" if what == "health" else random.randbytes(random.randrange(200, 400))
            assert methods[what](text, timeout=60) == b"done"

        tell_apart(served, ask)
