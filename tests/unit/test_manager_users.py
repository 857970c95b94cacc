"""What a user sees of the daemon's tasks, and may do to its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runlist.daemon.tasks.managed import ManagedTask, SuspendedBy
from runlist.errors import NoPermissionError
from runlist.model import TaskKey
from tests.fixtures.adoption import PID, own_usage
from tests.fixtures.manager import NO_PROCESS, Managed, a_daemon, enabled

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
        world.give(root, 1000)
        assert world.manager.suspend(PID, False, 1000) == [world.task()]

    a_daemon(test)


@pytest.mark.parametrize(
    ("cause", "rule", "uid", "may"),
    [
        (SuspendedBy.ROOM, "rules.toml:1", 1000, False),
        (SuspendedBy.ROOM, "", 1000, True),  # whoever named it may take that back
        (SuspendedBy.ROOM, "rules.toml:1", 0, True),
        (SuspendedBy.POLICY, "", 1000, False),
        (SuspendedBy.POLICY, "", 0, True),
        (SuspendedBy.USER, "rules.toml:1", 1000, True),
    ],
)
@pytest.mark.parametrize("away", [False, True])
def test_nobody_gets_round_rules_by_being_managed_no_more(
    cause: SuspendedBy, rule: str, uid: int, may: bool, away: bool
) -> None:
    """Nor where it is off for a moment because it has no context."""

    async def test(world: Managed) -> None:
        client = world.tenant()
        root = await world.launched()
        await world.adopt(root)
        world.give(root, 1000)
        task = world.task()
        task.suspend_for(cause, "kept off")
        task.rule = rule
        world.gpus.run_all()
        if away:
            process = world.processes.managed[PID]
            world.processes.drop(process, process.keys(), by_itself=True)
            assert root.away
        if may:
            assert world.manager.release(uid) == []
        else:
            with pytest.raises(NoPermissionError, match="only root may detach it now"):
                world.manager.detach(PID, uid)
            (said,) = world.manager.release(uid)
            assert "only root may detach it now" in said
        assert (root in world.processes.roots.values()) is not may
        assert away or enabled(client) is may
        world.manager.release(0)

    a_daemon(test)
