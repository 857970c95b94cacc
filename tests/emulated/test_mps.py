"""Clients of one MPS server: the GPU has one channel group for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conftest import ON_NVIDIA
from tests.fixtures.daemon import Commands, Daemon, Slices, Worker, task_of, wait_for
from tests.fixtures.kept import commands, daemon, kept

__all__ = ["commands", "daemon", "kept"]

Start = Callable[..., Worker]


@pytest.fixture
def clients(commands: Commands, worker: Start) -> Iterator[list[Worker]]:
    """Two clients of a server, and a process that is none."""
    from bench.harness import mps

    with mps.server() as server:
        if server.missing:
            pytest.skip(server.missing)
        served = {**commands.environment, **server.environment}
        made = [worker(environment=served), worker(environment=served), worker()]
        yield made
        for one in made:
            one.kill()


def test_they_are_named_and_stop_together(daemon: Daemon, commands: Commands, clients: list[Worker]) -> None:
    first, second, alone = clients
    said = commands.run("attach", str(first.pid))
    assert f"process {first.pid} is a client of an MPS server" in said.stderr
    for one in (second, alone):
        daemon.client.attach(one.pid)
    assert task_of(daemon, first.pid).together == [second.pid]
    assert task_of(daemon, second.pid).together == [first.pid]
    assert task_of(daemon, alone.pid).together == []
    daemon.client.suspend(first.pid)
    assert not task_of(daemon, second.pid).enabled
    second.assert_stopped()
    alone.wait_for_progress()
    daemon.client.resume(first.pid)
    for one in clients:
        one.wait_for_progress()


def test_one_that_is_not_managed_stops_too_and_goes_on_when_the_other_ends(
    daemon: Daemon, clients: list[Worker]
) -> None:
    first, second, _ = clients
    daemon.client.attach(first.pid)
    daemon.client.suspend(first.pid)
    assert task_of(daemon, first.pid).together == [second.pid]
    second.assert_stopped()
    if not ON_NVIDIA:  # a server of MPS ends with a client that is killed
        first.kill()
    else:
        daemon.client.detach(first.pid)
    second.wait_for_progress()


def test_they_share_as_one(daemon: Daemon, clients: list[Worker]) -> None:
    first, second, _ = clients
    for one in clients:
        daemon.client.attach(one.pid, "batch")
    wait_for(lambda: all(task.share_1s > 0 for task in daemon.client.ps() if task.pid != second.pid))
    slices = {task.pid: task.timeslice_us for task in daemon.client.ps()}  # they change from one answer to the next
    assert slices[first.pid] == slices[second.pid]
    for one in clients:
        one.wait_for_progress()


@pytest.mark.parametrize("how", ["ends", "is let go of"])
def test_one_stays_suspended_when_the_client_goes_by_which_it_is(
    daemon: Daemon, clients: list[Worker], how: str
) -> None:
    first, second, _ = clients
    for one in clients:
        daemon.client.attach(one.pid)
    daemon.client.suspend(second.pid)
    first.assert_stopped()
    if how == "ends" and not ON_NVIDIA:  # a server of MPS ends with a client that is killed
        first.kill()
    else:
        daemon.client.detach(first.pid)
    wait_for(lambda: task_of(daemon, second.pid).together == [first.pid] * (how != "ends" or ON_NVIDIA))
    wait_for(lambda: not task_of(daemon, second.pid).enabled)
    second.assert_stopped()
    daemon.client.resume(second.pid)
    second.wait_for_progress()


@pytest.mark.skipif(ON_NVIDIA, reason="a server of MPS ends with a client that is killed")
def test_one_stays_suspended_also_when_somebody_holds_the_clients_file(daemon: Daemon, clients: list[Worker]) -> None:
    """As the keeper does for a moment: the client ends when the last copy of its file is closed."""
    first, second, _ = clients
    for one in clients:
        daemon.client.attach(one.pid)
    daemon.client.suspend(second.pid)
    slices = Slices()
    held = slices.contexts(first.pid)
    first.kill()
    wait_for(lambda: task_of(daemon, second.pid).together == [])
    wait_for(lambda: not task_of(daemon, second.pid).enabled)
    second.assert_stopped()
    for context in held:
        context.handle.close()
    second.assert_stopped(1.5)
    daemon.client.resume(second.pid)
    second.wait_for_progress()
    slices.close()


def test_nobody_is_left_suspended_when_the_daemon_and_the_keeper_go(daemon: Daemon, clients: list[Worker]) -> None:
    for one in clients:
        daemon.client.attach(one.pid)
    for one in clients:
        daemon.client.suspend(one.pid)
    clients[1].assert_stopped()
    daemon.kill()
    for one in clients:
        one.wait_for_progress()
