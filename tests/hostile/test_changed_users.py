"""A process becomes another user's while it is managed, as a set-uid program does: from then on it is nobody else's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runlist.errors import NoTargetError, NotSupportedError
from runlist.proc.process import owner_of
from tests.fixtures.adoption import FOUND, OF_CHILD, own_usage, slices
from tests.fixtures.daemon import NOBODY, needs_root, wait_for
from tests.fixtures.fake_rm import FakeClient
from tests.fixtures.manager import Managed, a_daemon, enabled

pytestmark = [needs_root, pytest.mark.usefixtures("own_usage")]
__all__ = ["own_usage"]

VICTIM = NOBODY - 1


class SetUid:
    """A process that nobody started, with the rights of somebody else, whose it becomes when told to."""

    def __init__(self) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGUSR1, lambda *_: os.setresuid(VICTIM, VICTIM, VICTIM))
            os.setresuid(NOBODY, 0, 0)
            while True:
                signal.pause()
        wait_for(lambda: owner_of(self.pid) == NOBODY, "the process to be nobody's")

    def change(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)
        wait_for(lambda: owner_of(self.pid) == VICTIM, "the process to be the victim's")


@pytest.fixture
def program() -> Iterator[SetUid]:
    made = SetUid()
    yield made
    os.kill(made.pid, signal.SIGKILL)
    os.waitpid(made.pid, 0)


async def managed(world: Managed, pid: int, user: int) -> FakeClient:
    client = world.tenant(pid, OF_CHILD)
    root = world.root(pid, weight="50")
    root.uid = user
    await world.adopt(root, pid)
    assert slices(client) != FOUND
    return client


def test_who_started_it_has_no_say_in_it_any_more(program: SetUid) -> None:
    async def test(world: Managed) -> None:
        client = await managed(world, program.pid, NOBODY)
        program.change()
        for ask in (
            lambda: world.manager.suspend(program.pid, True, NOBODY),
            lambda: world.manager.change(program.pid, {"class": "batch"}, NOBODY),
        ):
            with pytest.raises(NoTargetError, match="is another user's now"):
                ask()
        assert enabled(client)
        assert slices(client) == FOUND
        world.manager.detach(program.pid, NOBODY)
        assert world.nothing_is_left()

    a_daemon(test)


def test_it_is_put_back_within_a_second_whatever_was_set(program: SetUid) -> None:
    async def test(world: Managed) -> None:
        client = await managed(world, program.pid, NOBODY)
        world.manager.suspend(program.pid, True, NOBODY)
        assert not enabled(client)
        program.change()
        world.checks.check(files=True, slices=False)
        assert enabled(client)
        assert slices(client) == FOUND
        await world.search.scan()
        assert world.nothing_is_left()

    a_daemon(test)


def test_rules_name_it_anew(program: SetUid, tmp_path: Path) -> None:
    """A program in a container drops its rights when it has its GPU: it is nobody who is out of rules by that."""
    (tmp_path / "rules.toml").write_text('[[rule]]\nset.class = "batch"\n')

    async def test(world: Managed) -> None:
        world.census.pids = lambda: {program.pid}
        client = world.tenant(program.pid, OF_CHILD)
        await world.search.scan()
        root = world.processes.roots[program.pid]
        assert (root.uid, root.by_rule) == (NOBODY, True)
        root.borrowers = (world.borrower,)
        await world.adopt(root, program.pid)
        assert slices(client) != FOUND
        program.change()
        world.checks.check(files=True, slices=False)
        assert slices(client) == FOUND
        await world.search.scan()
        root = world.processes.roots[program.pid]
        assert (root.uid, root.by_rule) == (VICTIM, True)

    a_daemon(test, tmp_path / "rules.toml")


def test_root_answers_for_all_in_its_trees(program: SetUid) -> None:
    async def test(world: Managed) -> None:
        await managed(world, program.pid, 0)
        program.change()
        world.checks.check(files=True, slices=False)
        (task,) = world.manager.suspend(program.pid, True, 0)
        assert task.task.key.pid == program.pid

    a_daemon(test)


def test_its_memory_is_limited_by_nobody_else(program: SetUid) -> None:
    """Where the driver does so by cgroup."""

    async def test(world: Managed) -> None:
        moved: list[int] = []
        world.processes._driver_limits.work = True
        world.processes._driver_limits.enter = moved.append  # type: ignore[method-assign, assignment]
        root = world.root(program.pid)
        root.uid = NOBODY
        program.change()
        with pytest.raises(NoTargetError, match="is another user's now"):
            world.manager.change(program.pid, {"memory": "1G"}, NOBODY)
        with pytest.raises(NotSupportedError):
            root.quota.set_limit(1 << 30)  # as a rule may
        assert moved == []

    a_daemon(test)
