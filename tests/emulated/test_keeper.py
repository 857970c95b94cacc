"""Killing the daemon, its keeper, or both, at any moment: every tenant gets its own slices back and runs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runlist.client import Client
from runlist.errors import RunlistError
from tests.fixtures.daemon import DEFAULT_SLICES, Commands, Daemon, Slices, Worker, running, wait_for
from tests.fixtures.effort import TIMES

Start = Callable[..., Worker]

KILLS = 8 * TIMES
"""`python -m bench` has the same with a count: 200 for a release."""


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(mask >> (number - 1) & 1)


def open_by(pid: int) -> list[str]:
    """Files that a process has open."""
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return names


def all_as_found(slices: Slices, tenants: list[Worker]) -> None:
    for tenant in tenants:
        wait_for(lambda: slices.of(tenant.pid) == DEFAULT_SLICES, f"the slices of {tenant.pid}")  # noqa: B023
    for tenant in tenants:
        tenant.wait_for_progress()


def test_when_the_daemon_is_killed_everything_is_put_back(daemon: Daemon, worker: Start, slices: Slices) -> None:
    foreground, *tenants = [worker() for _ in range(4)]
    foreground.do("pause")
    daemon.client.attach(foreground.pid, "latency")
    for tenant in tenants:  # behind it they take turns: only one is not suspended
        daemon.client.attach(tenant.pid, "batch")
    daemon.client.set(tenants[0].pid, {"timeslice": "7000"})
    daemon.client.suspend(tenants[1].pid)
    keeper = daemon.keeper
    daemon.kill()
    foreground.do("go")
    tenants.append(foreground)
    all_as_found(slices, tenants)
    wait_for(lambda: not running(keeper), "the keeper to end")
    assert all(tenant.quit() for tenant in tenants)


def test_the_keeper_is_not_ended_by_what_ends_the_daemon(daemon: Daemon, worker: Start, slices: Slices) -> None:
    """Signals that a terminal or an init sends to a whole session or group."""
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    keeper = daemon.keeper
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
    wait_for(lambda: all(ignores(keeper, number) for number in signals), "the keeper to be ready")
    for number in signals:
        os.kill(keeper, number)
    assert os.getsid(keeper) != os.getsid(daemon.pid)
    time.sleep(0.3)
    assert running(keeper)
    assert daemon.keeper == keeper
    daemon.kill()
    all_as_found(slices, [tenant])


def test_a_killed_keeper_is_replaced_by_one_that_knows_everything(
    daemon: Daemon, worker: Start, slices: Slices
) -> None:
    tenants = [worker(), worker()]
    for tenant, task_class in zip(tenants, ("batch", "latency"), strict=True):
        daemon.client.attach(tenant.pid, task_class)
    for _ in range(2):
        keeper = daemon.keeper
        kill(keeper)
        wait_for(lambda: daemon.keeper != keeper and running(daemon.keeper), "another keeper")  # noqa: B023
    assert slices.compute(tenants[0].pid) == 1  # the keeper's death changed nothing
    daemon.client.suspend(tenants[0].pid)
    daemon.kill()
    all_as_found(slices, tenants)


def test_without_a_keeper_that_lives_the_daemon_fails_and_everything_is_put_back(
    daemon: Daemon, worker: Start, slices: Slices
) -> None:
    """With an exit code that has a service manager start another."""
    daemon.faults, daemon.ends_with = ("no keeper stays alive",), 1
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    while daemon.process.poll() is None:
        with contextlib.suppress(RunlistError, ProcessLookupError):
            kill(daemon.keeper)
    all_as_found(slices, [tenant])
    assert tenant.quit()


def test_a_stopped_keeper_still_does_its_work_later(daemon: Daemon, worker: Start, slices: Slices) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    keeper = daemon.keeper
    os.kill(keeper, signal.SIGSTOP)
    daemon.client.suspend(tenant.pid)
    daemon.kill()
    tenant.assert_stopped(0.2)
    os.kill(keeper, signal.SIGCONT)
    all_as_found(slices, [tenant])


def test_when_both_are_killed_release_puts_back(
    commands: Commands, daemon: Daemon, worker: Start, slices: Slices
) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    daemon.client.suspend(tenant.pid)
    keeper = daemon.keeper
    os.kill(keeper, signal.SIGSTOP)  # so that it cannot act in between
    daemon.kill()
    kill(keeper)
    tenant.assert_stopped(0.3)
    assert slices.compute(tenant.pid) == 1
    notes = commands.json("release", str(tenant.pid))["notes"]
    assert any("a slice of 1 µs is set to 2048 µs" in note for note in notes)
    all_as_found(slices, [tenant])
    assert tenant.quit()


@pytest.mark.parametrize("hangs", [False, True])
def test_when_both_are_killed_or_hang_the_next_daemon_puts_back(
    daemon: Daemon, start_daemon: Callable[..., Daemon], worker: Start, slices: Slices, hangs: bool
) -> None:
    tenant, other = worker(), worker()
    daemon.client.attach(tenant.pid, "batch")
    daemon.client.suspend(tenant.pid)
    keeper = daemon.keeper
    os.kill(keeper, signal.SIGSTOP)  # so that it cannot act in between
    daemon.kill()
    if not hangs:
        kill(keeper)
    slices.set(other.pid, 3000)  # its own wish: nobody managed it
    tenant.assert_stopped(0.3)
    successor = start_daemon()
    all_as_found(slices, [tenant])
    assert slices.compute(other.pid) == 3000
    assert not running(keeper)
    assert successor.client.ps() == []
    successor.client.attach(tenant.pid, "batch")
    successor.client.detach(tenant.pid)
    assert slices.of(tenant.pid) == DEFAULT_SLICES
    assert tenant.quit()


def test_a_new_daemon_takes_over_after_a_kill(
    daemon: Daemon, start_daemon: Callable[..., Daemon], worker: Start, slices: Slices
) -> None:
    tenant = worker()
    daemon.client.attach(tenant.pid, "batch")
    daemon.kill()
    all_as_found(slices, [tenant])
    successor = start_daemon()
    assert successor.client.ps() == []
    successor.client.attach(tenant.pid, "batch")
    successor.client.detach(tenant.pid)
    assert slices.of(tenant.pid) == DEFAULT_SLICES  # and not what a half-dead predecessor left


def test_a_tenant_that_ended_is_not_kept_alive_by_the_keeper(daemon: Daemon, worker: Start) -> None:
    """A copy of its open file would keep its memory."""
    tenant = worker()
    wait_for(lambda: any(name.endswith(".changed") for name in open_by(daemon.keeper)), "what it is told first")
    before = len(open_by(daemon.keeper))
    daemon.client.attach(tenant.pid, "batch")
    wait_for(lambda: len(open_by(daemon.keeper)) > before, "the keeper to hold its file")
    tenant.process.kill()
    tenant.process.wait()
    wait_for(lambda: len(open_by(daemon.keeper)) == before, "the keeper to let go")
    wait_for(lambda: not daemon.client.ps())


@pytest.mark.timeout(300 * TIMES)
def test_killed_at_random_moments_nothing_is_lost(
    start_daemon: Callable[..., Daemon], worker: Start, slices: Slices
) -> None:
    """The daemon is killed anywhere between its start and a stream of requests, again and again, under load."""
    tenants = [worker() for _ in range(3)]
    chance = random.Random(2)
    for _ in range(KILLS):
        daemon = start_daemon()
        deadline = time.monotonic() + chance.uniform(0.0, 0.4)
        with Client.open() as client:
            while time.monotonic() < deadline:
                tenant = chance.choice(tenants)
                requests: list[Callable[[], object]] = [
                    lambda: client.attach(tenant.pid, chance.choice(["latency", "normal", "batch"])),  # noqa: B023
                    lambda: client.suspend(tenant.pid),  # noqa: B023
                    lambda: client.resume(tenant.pid),  # noqa: B023
                    lambda: client.set(tenant.pid, {"timeslice": "1"}),  # noqa: B023
                    lambda: client.detach(tenant.pid),  # noqa: B023
                ]
                with contextlib.suppress(RunlistError):  # that one is not managed at the moment
                    chance.choice(requests)()
            daemon.kill()
        all_as_found(slices, tenants)
    assert all(tenant.quit() for tenant in tenants)
