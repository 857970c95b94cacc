"""A real server whose requests are announced: learnt from what comes in over its sockets, or said by itself."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.views.structs import TaskView
from runlist.workloads.process import WorkloadProcess
from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import DEFAULT_SLICES, Commands, Daemon, Slices, task_of, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

pytestmark = pytest.mark.skipif(ON_NVIDIA, reason="its programs are made for the emulated GPU's pace")

SERVER = """
import os, socket, sys, time
import runlist
from runlist.workloads.gpu import Gpu
from runlist.workloads.accumulator import Accumulator

gpu = Gpu(0)
work = Accumulator(gpu, blocks=gpu.sm_count)
work.launch(1)
work.synchronize()
listener = socket.create_server(("127.0.0.1", 0))
print(os.getpid(), listener.getsockname()[1], flush=True)

def compute():
    until = time.perf_counter() + 0.002
    while time.perf_counter() < until:
        pass
    work.launch(1000)
    work.synchronize()

while True:
    connection, _ = listener.accept()
    with connection:
        while text := connection.recv(1000):
            if text.startswith(b"POST"):
                compute()
            elif text.startswith(b"REQUESTS"):
                for _ in range(20):
                    with runlist.request():
                        compute()
                    time.sleep(0.06)
            elif text.startswith(b"LIE"):
                with runlist.request():
                    time.sleep(0.01)
            elif text.startswith(b"HINT"):
                runlist.hint(0)
            elif text.startswith(b"FORK") and not os.fork():
                os._exit(0)
            elif text.startswith(b"OPEN"):
                runlist.request().__enter__()
            connection.sendall(b"done")
"""


class Server:
    """The server, and a client of it."""

    def __init__(self, commands: Commands, daemon: Daemon, folder: Path) -> None:
        file = folder / "server.py"
        file.write_text(SERVER)
        process = commands.start("run", "--class", "latency", "--", sys.executable, str(file))
        assert process.stdout is not None
        self.daemon = daemon
        self.pid, port = map(int, process.stdout.readline().split())
        self.address = "127.0.0.1", port
        wait_for(lambda: any(task.pid == self.pid for task in daemon.client.ps()), "the task")
        self.connection = socket.create_connection(self.address)

    def ask(self, text: str, times: int = 1, pause_s: float = 0.06) -> None:
        for _ in range(times):
            self.connection.sendall(f"{text} / HTTP/1.1\r\n\r\n".encode())
            assert self.connection.recv(100) == b"done"
            time.sleep(pause_s)

    @property
    def task(self) -> TaskView:
        return task_of(self.daemon, self.pid)

    @property
    def told(self) -> int:
        """How many announcements there were, as `ps` says."""
        found = re.search(r"of (\d+) were wrong", self.task.why)
        return int(found[1]) if found else 0

    def ask_until_told(self, text: str, times: int, most: int = 100) -> None:
        """Until so many were announced: what comes while a busy daemon is late for the one before does not count."""
        before = self.told
        for _ in range(most):
            self.ask(text)
            if self.told >= before + times:
                return
        raise AssertionError(f"{self.told - before} of {most} were announced")


@pytest.fixture
def server(daemon: Daemon, commands: Commands, batch: WorkloadProcess, tmp_path: Path) -> Iterator[Server]:
    daemon.client.use_policy("priority", {"give_way": "switch"})
    one = Server(commands, daemon, tmp_path)
    yield one
    with contextlib.suppress(ProcessLookupError):  # also one that was stopped
        os.kill(one.pid, signal.SIGKILL)


def on(daemon: Daemon, batch: WorkloadProcess) -> bool:
    return task_of(daemon, batch.pid).enabled


def forgive(server: Server) -> None:
    """Where processors are busy a few wrong ones would take the whole budget."""
    server.daemon.client.use_policy("priority", {"give_way": "switch", "announce_budget": "0.5"})


def test_requests_are_learnt_and_health_checks_are_not(server: Server, batch: WorkloadProcess) -> None:
    forgive(server)
    server.ask_until_told("POST", 10)
    server.ask("GET", 5)  # until they are known
    before = batch.measure(0.1)["kernels"]
    assert before > 0

    def quiet() -> bool:
        told = server.told
        server.ask("GET", 20)
        return server.told <= told + 1

    wait_for(quiet, "health checks to be known")
    server.ask_until_told("POST", 8, most=30)  # they are known as well
    assert batch.quit()["correct"]


def test_requests_by_the_other_way(server: Server, daemon: Daemon, batch: WorkloadProcess) -> None:
    daemon.client.use_policy("priority", {"give_way": "request"})
    server.ask_until_told("POST", 10)
    wait_for(lambda: on(daemon, batch))
    assert batch.quit()["correct"]


def test_what_the_program_says_itself_is_believed_at_once(server: Server) -> None:
    """Nothing comes in for all but the first: there is nothing to learn."""
    forgive(server)
    server.ask("REQUESTS")
    wait_for(lambda: server.told >= 3)  # on a busy machine some come while the daemon is late for the one before


def test_a_hint_goes_by_the_library(server: Server, batch: WorkloadProcess) -> None:
    """Which touches the context, and disturbs nothing by it."""
    for _ in range(5):
        server.ask("HINT", pause_s=0.01)
        server.ask("POST", pause_s=0.02)
    assert batch.quit()["correct"]


def test_who_is_wrong_all_the_time_is_ignored_and_ps_says_so(
    server: Server, daemon: Daemon, batch: WorkloadProcess
) -> None:
    slowly_forgiven = {"give_way": "switch", "announce_budget": "0.001"}
    daemon.client.use_policy("priority", slowly_forgiven)

    def ignored() -> bool:
        server.ask("LIE", pause_s=0)
        return "its announcements are ignored" in server.task.why

    wait_for(ignored)
    told = server.told
    server.ask("LIE", 30, 0)
    assert server.told <= told + 1
    assert batch.measure(0.2)["kernels"] > 0


def test_a_request_that_is_never_ended_keeps_nobody_off(server: Server, daemon: Daemon, batch: WorkloadProcess) -> None:
    daemon.client.use_policy("priority", {"give_way": "request"})
    server.ask("OPEN")
    server.ask("POST", 3)
    wait_for(lambda: on(daemon, batch))
    assert batch.measure(0.3)["kernels"] > 0


def test_a_child_of_fork_changes_nothing(server: Server) -> None:
    forgive(server)
    server.ask_until_told("POST", 5)
    server.ask("FORK", 3)
    server.ask_until_told("POST", 5, most=20)


def stop(server: Server) -> None:
    os.kill(server.pid, signal.SIGSTOP)


def kill(server: Server) -> None:
    os.kill(server.pid, signal.SIGKILL)


@pytest.mark.parametrize("ends", [stop, kill], ids=lambda function: function.__name__)
def test_whatever_becomes_of_it_the_background_comes_back(
    server: Server, daemon: Daemon, batch: WorkloadProcess, ends: Callable[[Server], None]
) -> None:
    server.ask("POST", 8)
    server.connection.sendall(b"POST / HTTP/1.1\r\n\r\n")
    ends(server)
    wait_for(lambda: on(daemon, batch))
    assert batch.measure(0.3)["kernels"] > 0


def test_when_the_daemon_is_killed_everything_is_put_back(
    server: Server, daemon: Daemon, batch: WorkloadProcess, slices: Slices
) -> None:
    server.ask("POST", 8)
    server.connection.sendall(b"POST / HTTP/1.1\r\n\r\n")
    daemon.kill()
    wait_for(lambda: slices.of(batch.pid) == DEFAULT_SLICES)
    assert batch.measure(0.3)["kernels"] > 0
