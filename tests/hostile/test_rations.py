"""What one user may have of what there is once: reservations of a GPU's time, and room on it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from runlist.daemon.tree import processes
from runlist.errors import RunlistError
from runlist.model import Deadline, TaskClass
from tests.fixtures.adoption import OF_CHILD, PID, child, own_usage, until
from tests.fixtures.daemon import NOBODY, needs_root
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.manager import ME, Managed, a_daemon

pytestmark = [pytest.mark.usefixtures("own_usage"), needs_root]
__all__ = ["own_usage"]


def test_a_user_reserves_no_more_than_a_part_however_it_asks(tmp_path: Path) -> None:
    """What a rule gives is no word of the user's."""
    (tmp_path / "rules.toml").write_text('[[rule]]\nuser = 0\n[[rule]]\nset.deadline = "8ms/10ms"\n')

    async def test(world: Managed) -> None:
        with child(NOBODY) as one, child(NOBODY) as other:
            for pid in (one, other):
                world.tenant(pid, OF_CHILD)
            root = world.root(one, deadline="40ms/100ms")
            await world.adopt(root, one)
            with pytest.raises(RunlistError, match="not managed: a deadline of 20 %"):
                await world.adopt(world.root(other, deadline="2ms/10ms"), other)
            for settings, error in ({"deadline": "6ms/10ms"}, "60 % of the GPU"), ({"deadline": "8ms/10ms"}, ""):
                with pytest.raises(RunlistError, match=error) if error else contextlib.nullcontext():
                    world.manager.change(one, settings, NOBODY)
            assert world.task(one).task.deadline == Deadline(8_000, 10_000)
            world.manager.suspend(one, True, NOBODY)  # what it has it keeps

    a_daemon(test, tmp_path / "rules.toml")


def test_what_a_user_weighs_together_is_told_to_policies_with_what_rules_give(tmp_path: Path) -> None:
    """Whatever it sets: that counts among its own tasks."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[limits]\nuser_weight = 300\n[[rule]]\nuser = 65534\nset.weight = 200\n")

    async def test(world: Managed) -> None:
        with child(NOBODY) as one:
            world.tenant(one, OF_CHILD)
            world.tenant()
            for pid in (one, PID):
                await world.adopt(world.root(pid), pid)
            notes = world.manager.change(one, {"weight": "1000", "group": "all"}, NOBODY).notes
            assert notes == ["beside tasks of other users, yours weigh 300 together beyond what rules give them"]
            assert world.manager.change(PID, {"weight": "1000"}, ME).notes == []
            task = world.task(one).task
            assert (task.weight, task.given_weight, task.most_weight) == (1000, 200, 300)
            assert (world.task().task.weight, world.task().task.most_weight) == (1000, None)
            await world.manager.reload_rules()  # of which there are none now
            task = world.task(one).task
            assert (task.weight, task.given_weight, task.most_weight) == (1000, 0, 100)

    a_daemon(test, rules)


def test_a_user_has_no_class_that_rules_keep_from_users_but_what_a_rule_gives(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[limits]\nuser_class = "normal"\n[[rule]]\nuser = 65534\nset.class = "latency"\n')

    async def test(world: Managed) -> None:
        with child(NOBODY) as given, child(NOBODY - 1) as other:
            for pid in (given, other):
                world.tenant(pid, OF_CHILD)
            await world.adopt(await world.launched(given, NOBODY, **{"class": "latency"}), given)
            for word in ("batch", "latency"):
                world.manager.change(given, {"class": word}, NOBODY)
            refused = "than normal, the most that users may have"
            with pytest.raises(RunlistError, match=refused):
                world.manager.change(given, {"deadline": "1ms/10ms"}, NOBODY)
            assert world.task(given).task.task_class is TaskClass.LATENCY
            with pytest.raises(RunlistError, match=f"the command is not started: class latency is more {refused}"):
                await world.launched(other, NOBODY - 1, **{"class": "latency"})
            with pytest.raises(RunlistError, match=refused):
                await world.adopt(world.root(other, **{"class": "latency"}), other)
            assert other not in world.processes.managed

    a_daemon(test, rules)


def test_commands_that_use_no_gpu_keep_others_waiting_for_a_while_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One user's sleeping commands had all the room that rules give, for as long as they slept."""
    (tmp_path / "rules.toml").write_text("[limits]\ntasks = 2\n")

    async def test(world: Managed) -> None:
        monkeypatch.setattr(world.census, "gpus", lambda: [UUIDS[0]])
        with child(NOBODY) as one, child(NOBODY) as other, child() as mine:
            root = await world.launched(one, NOBODY)
            world.tenant(other, OF_CHILD)
            busy = await world.launched(other, NOBODY)
            await world.adopt(busy, other)
            waits = asyncio.create_task(world.launched(mine, ME))
            await until(lambda: world.placement.queue.commands)
            await asyncio.sleep(0)
            assert not waits.done()
            monkeypatch.setattr(processes, "STARTS_S", 0.0)
            await waits
            assert not root.ended
            monkeypatch.setattr(processes, "STARTS_S", 60.0)
            world.processes.drop(busy_process := world.processes.managed[other], busy_process.keys())
            assert busy.owner in world.processes.starting  # it may have a context again at any moment

    a_daemon(test, tmp_path / "rules.toml")
