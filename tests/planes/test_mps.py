"""Clients of one MPS server, which the GPU knows as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from runlist.client import Client
from tests.fixtures.daemon import NOBODY, As, Commands, Daemon, Refused, group_of_nobody, needs_root, wait_for
from tests.fixtures.memory_plane import FOUND_US, Tenant


@pytest.fixture
def served(device_env: dict[str, str]) -> Iterator[list[Tenant]]:
    """Two clients of an MPS server, and a process that is none."""
    made = [Tenant(name) for name in ("mps-first", "mps-second", "alone")]
    yield made
    for one in made:
        one.end()


def run(served: list[Tenant]) -> list[bool]:
    """Who runs: where one client is disabled, none does."""
    *clients, alone = (tenant.state[1] for tenant in served)
    return [*[all(clients)] * len(clients), alone]


def test_attach_and_ps_say_who_runs_together(commands: Commands, daemon: Daemon, served: list[Tenant]) -> None:
    first, second, alone = served
    said = commands.run("attach", str(first.pid), "--class", "batch")
    assert said.returncode == 0
    assert f"process {first.pid} is a client of an MPS server" in said.stderr
    assert str(second.pid) in said.stderr  # which is not managed, and stops with it all the same
    for tenant in (second, alone):
        commands.ok("attach", str(tenant.pid), "--class", "batch")
    together = {task["pid"]: task["together"] for task in commands.json("ps")}
    assert together == {first.pid: [second.pid], second.pid: [first.pid], alone.pid: []}
    assert "TOGETHER WITH" in commands.ok("ps")


def test_suspending_one_is_suspending_all_and_says_so(commands: Commands, daemon: Daemon, served: list[Tenant]) -> None:
    first, second, _ = served
    for tenant in served:
        commands.ok("attach", str(tenant.pid))
    said = commands.run("suspend", str(first.pid))
    assert str(second.pid) in said.stderr
    assert [tenant.state[1] for tenant in served] == [False, True, True]  # one is enough
    assert run(served) == [False, False, True]
    commands.ok("suspend", str(second.pid))
    commands.ok("resume", str(first.pid))
    assert run(served) == [False, False, True]  # the other one's user keeps both off
    commands.ok("detach", str(first.pid))
    assert first.state[1]
    assert run(served) == [False, False, True]
    commands.ok("resume", str(second.pid))
    assert all(tenant.state[1] for tenant in served)


def test_the_strongest_class_counts_for_all(commands: Commands, daemon: Daemon, served: list[Tenant]) -> None:
    first, second, alone = served
    commands.ok("attach", str(first.pid), "--class", "batch")
    commands.ok("attach", str(alone.pid), "--class", "batch")
    commands.ok("attach", str(second.pid), "--class", "latency")
    wait_for(lambda: [tenant.state[0] for tenant in served] == [1_000_000, 1_000_000, 1])
    commands.ok("detach", str(second.pid))
    assert second.state == (FOUND_US, True, "low")
    wait_for(lambda: first.state[0] == alone.state[0] != 1)


def test_one_takes_turns_for_all(commands: Commands, daemon: Daemon, served: list[Tenant]) -> None:
    for tenant in served:
        commands.ok("attach", str(tenant.pid), "--class", "batch")
    seen = set()

    def both() -> bool:
        seen.add(tuple(run(served)))
        return {(True, True, False), (False, False, True)} <= seen or (True, True, True) in seen

    wait_for(both)


_AS_NOBODY = (
    "setpriv", "--reuid", str(NOBODY), "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override",
)  # fmt: skip


@needs_root
def test_nobody_suspends_the_clients_of_others(device_env: dict[str, str], start_daemon: Callable[..., Daemon]) -> None:
    """A server may have clients of several users. Whoever suspends one of theirs suspends all."""
    daemon = start_daemon("--group", group_of_nobody())
    theirs, mine = Tenant("mps-theirs"), Tenant("mps-mine", _AS_NOBODY)
    try:
        As(NOBODY)(lambda: Client.open().attach(mine.pid, "batch"))
        with pytest.raises(Refused, match=f"process {theirs.pid} of another user would stop with it"):
            As(NOBODY)(lambda: Client.open().suspend(mine.pid))
        daemon.client.attach(theirs.pid, "batch")
        with pytest.raises(Refused, match="only root may suspend it"):
            As(NOBODY)(lambda: Client.open().suspend(mine.pid))
        assert [theirs.state[1], mine.state[1]] == [True, True]
        daemon.client.suspend(mine.pid)
        assert not (theirs.state[1] and mine.state[1])
        with pytest.raises(Refused):
            As(NOBODY)(lambda: Client.open().suspend(mine.pid))
        daemon.client.resume(mine.pid)
        theirs.end()
        wait_for(lambda: len(daemon.client.ps()) == 1)
        As(NOBODY)(lambda: Client.open().suspend(mine.pid))
        assert not mine.state[1]
    finally:
        for one in (theirs, mine):
            if one.process.poll() is None:
                one.end()
