"""What a process asks for itself for a while, and what it has again afterwards. The driver is in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from runlist.daemon.requests.own import OwnSettings
from runlist.errors import NoTargetError, RunlistError
from runlist.planes.process.region import create
from tests.fixtures.adoption import PID, levels, own_usage
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.manager import ME, Managed, a_daemon

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

GiB = 1 << 30


def test_memory_that_one_asks_for_is_taken_back_unless_somebody_else_set_it_since(tmp_path: Path) -> None:
    async def test(world: Managed) -> None:
        world.tenant()
        root = await world.launched()
        root.quota.take(create(tmp_path, strict=True)[1])
        root.quota.set_limit(8 * GiB)
        await world.adopt(root)
        own = OwnSettings(world.manager)
        await own.manage(PID, {"memory": "2G", "weight": "7"}, None, ME)
        assert (root.quota.limit, world.task(PID).task.weight) == (2 * GiB, 7)
        await own.manage(PID, {"memory": "3G", "weight": "8"}, None, ME)
        await own.manage(PID, {"weight": "9"}, None, ME)  # in place of the last ones
        assert (root.quota.limit, world.task(PID).task.weight) == (8 * GiB, 9)
        await own.manage(PID, {"memory": "2G"}, None, ME)
        assert (root.quota.limit, world.task(PID).task.weight) == (2 * GiB, 100)
        assert own.leave(PID, ME) == []
        assert root.quota.limit == 8 * GiB
        await own.manage(PID, {"memory": "2G"}, None, ME)
        root.quota.set_limit(GiB)
        assert own.leave(PID, ME) == []
        assert root.quota.limit == GiB
        with pytest.raises(NoTargetError, match="has asked for nothing"):
            own.leave(PID, ME)
        await own.manage(PID, {"weight": "7"}, None, ME)
        root.quota.set_limit(6 * GiB)  # somebody else does, before it asks
        await own.manage(PID, {"memory": "2G"}, None, ME)
        assert own.leave(PID, ME) == []
        assert root.quota.limit == 6 * GiB
        root.quota.close()

    a_daemon(test)


def test_what_is_refused_to_one_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        root = await world.launched()
        root.quota.take(create(tmp_path, strict=True)[1])
        await world.adopt(root)
        own, task = OwnSettings(world.manager), world.task(PID)
        with monkeypatch.context() as patched:
            patched.setattr(world.gpus.scheduler(UUIDS[0]), "refusal", lambda task: "it would not fit")
            with pytest.raises(RunlistError, match="it would not fit"):
                await own.manage(PID, {"memory": "2G", "weight": "7", "interleave": "high"}, None, ME)
        assert (root.quota.limit, task.task.weight, task.controls) == (None, 100, {})
        assert set(levels(client)) <= {0}
        await own.manage(PID, {"interleave": "high"}, None, ME)
        assert set(levels(client)) == {2}
        await own.manage(PID, {"weight": "7"}, None, ME)
        assert set(levels(client)) == {0}
        root.quota.close()

    a_daemon(test)
