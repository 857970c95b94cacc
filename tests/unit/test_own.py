"""What processes ask for themselves for a while, and what they go back to. The driver is in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from runlist import __version__, wire
from runlist.daemon.requests import own
from runlist.daemon.requests.own import OwnSettings
from runlist.daemon.tasks.managed import ManagedProcess
from runlist.errors import NoPermissionError
from runlist.model import Cap
from runlist.proc.borrow import OwnRight
from tests.fixtures.adoption import PID, own_usage
from tests.fixtures.daemon import NOBODY, short_path
from tests.fixtures.manager import ME
from tests.fixtures.served import Served, serving
from tests.unit.test_revision import SLEEP, Revised, revising
from tests.unit.test_search import scans
from tests.unit.test_server import message_of

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage", "short_path"]


def test_who_leaves_goes_back_to_what_the_rules_say_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Revised, one: int) -> None:
        world.put("a.toml", SLEEP, weight=7, interleave="medium")
        await scans(world)
        settings, task = OwnSettings(world.manager), world.task(one)
        await settings.manage(one, {"weight": "70", "interleave": "high"}, None, ME)
        world.put("a.toml", SLEEP, weight=8, cap=40, interleave="low")
        assert (task.task.weight, task.task.cap, task.controls) == (70, Cap(40_000, 100_000), {"interleave": "high"})
        assert settings.leave(one, ME) == []
        assert (task.task.weight, task.task.cap, task.controls) == (8, Cap(40_000, 100_000), {})

    revising(test, monkeypatch)


def test_a_users_process_asks_for_no_more_than_the_user_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Revised, one: int) -> None:
        world.put("a.toml", SLEEP, weight=7)
        await scans(world)
        monkeypatch.setattr(own, "check_owner", lambda pid, uid: None)
        with pytest.raises(NoPermissionError, match="only root and the daemon's own user may set interleave"):
            await OwnSettings(world.manager).manage(one, {"weight": "70", "interleave": "high"}, None, NOBODY)
        assert world.task(one).task.weight == 7

    revising(test, monkeypatch)


@pytest.mark.usefixtures("on_device")
def test_who_leaves_is_told_what_could_not_be_put_back(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Served) -> None:
        world.tenant()
        monkeypatch.setattr(OwnRight, "borrow", lambda self, *which: world.borrower.borrow(*which))
        client = world.client()
        managed = await client.ask(wire.Manage({"weight": "70"}))
        assert isinstance(managed, wire.Tasks)
        assert [(task.pid, task.weight) for task in managed.tasks] == [(PID, 70)]
        put_back = ManagedProcess.put_back
        monkeypatch.setattr(ManagedProcess, "put_back", lambda self: [*put_back(self), "a slice stays"])
        assert await client.ask(wire.Leave()) == wire.Tasks([], ["a slice stays"], __version__)
        assert "has asked for nothing" in message_of(await client.ask(wire.Leave()))

    serving(short_path, test)
