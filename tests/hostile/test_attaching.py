"""The same process attached many times at once: each request has the same answer, and none fails for another."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from runlist.client import Client
from runlist.errors import RunlistError
from tests.fixtures.daemon import Daemon, Worker

TIMES = 20


def attach_in_threads(pid: int) -> set[str]:
    said: set[str] = set()

    def attach() -> None:
        with Client.open() as client:
            for _ in range(TIMES):
                try:
                    client.attach(pid, "batch")
                except RunlistError as error:
                    said.add(str(error).partition(":")[0])
                else:
                    said.add("")

    threads = [threading.Thread(target=attach) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


@pytest.mark.parametrize("within", [False, True])
def test_a_process_without_a_context(daemon: Daemon, worker: Callable[..., Worker], within: bool) -> None:
    tenant = worker(idle=True)
    pid = int(tenant.do("fork")["pid"]) if within else tenant.pid
    if within:
        daemon.client.attach(tenant.pid, "batch", wait=True)
    assert attach_in_threads(pid) == {f"process {pid} has no GPU context now"}
    assert "Traceback" not in daemon.log.read_text()


def test_a_process_with_one(daemon: Daemon, worker: Callable[..., Worker]) -> None:
    tenant = worker()
    assert attach_in_threads(tenant.pid) == {""}
    assert [task.pid for task in daemon.client.ps()] == [tenant.pid]
