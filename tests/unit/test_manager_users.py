"""What a user sees of the daemon's tasks, and may do to its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.daemon.tasks.managed import ManagedTask
from runlist.model import TaskKey
from tests.fixtures.adoption import PID, own_usage
from tests.fixtures.manager import NO_PROCESS, Managed, a_daemon

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]


def test_what_cannot_be_managed_is_seen_by_its_user_and_by_root(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        await world.adopt(await world.launched())
        task = world.task()
        theirs = ManagedTask(replace(task.task, key=TaskKey(NO_PROCESS, task.task.key.gpu), uid=1000))
        monkeypatch.setattr(type(world.manager._guard), "outside", {theirs.task.key: theirs})
        assert world.manager.visible(0) == [task, theirs]
        assert world.manager.visible(1000) == [theirs]
        assert world.manager.visible(1001) == []

    a_daemon(test)


def test_one_that_runs_may_be_resumed_by_its_user() -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        root = await world.launched()
        await world.adopt(root)
        root.uid = 1000
        assert world.manager.suspend(PID, False, 1000) == [world.task()]

    a_daemon(test)
