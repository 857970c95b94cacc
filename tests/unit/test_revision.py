"""What becomes of running processes when rules change, and who is shown which rules. The driver is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runlist.daemon.placement.placement import Placement
from runlist.daemon.placement.rules import Rules
from runlist.daemon.requests.own import OwnSettings
from runlist.daemon.requests.rules_view import rules_view
from runlist.daemon.tasks.managed import ManagedTask
from runlist.daemon.tree.revision import Revision
from runlist.errors import NotSupportedError, UsageError
from runlist.model import Cap, TaskClass
from runlist.proc.cgroup import cgroup_of
from tests.fixtures.adoption import PID, child, levels, own_usage, slices
from tests.fixtures.fake_rm import FakeClient
from tests.fixtures.manager import ME, Managed, a_daemon
from tests.unit.test_search import borrowing, scans

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

STRANGER = 54_321


class Revised(Managed):
    """A manager whose rules change."""

    def __init__(self, rules: Path | None = None) -> None:
        super().__init__(rules)
        self.client: FakeClient
        self.rules_file: Path | None = rules
        self.revision = Revision(
            self.processes, self.gpus, self.keeping, self.placement, self.search, lambda: self.rules_file
        )

    def put(self, name: str, what: str, **settings: str | int) -> None:
        """A drop-in of one rule comes, or takes the place of another."""
        text = f"[[rule]]\n{what}\n" + "".join(f"set.{key} = {value!r}\n" for key, value in settings.items())
        self.revision.rules_changed(self.placement.rules.put(name, Rules.of_drop_in(Path(name), text.encode())))

    def drop(self, name: str) -> None:
        self.revision.rules_changed(self.placement.rules.put(name, None))


def revising(
    test: Callable[[Revised, int], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, rules: Path | None = None
) -> None:
    """Run a test with a process on the GPU."""

    async def run(world: Managed) -> None:
        assert isinstance(world, Revised)
        borrowing(world, monkeypatch)
        with child() as one:
            world.client = world.tree([one])[one]
            world.census.pids = lambda: {one}
            await test(world, one)

    a_daemon(run, rules, Revised)


SLEEP = 'command = "sleep*"'


def test_one_is_taken_changed_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Revised, one: int) -> None:
        found = slices(world.client)
        await scans(world)
        assert not world.processes.managed
        world.put("a.toml", SLEEP, timeslice="3ms", interleave="high", cap=40, weight=7)
        await scans(world)
        task = world.task(one)
        assert (task.task.weight, task.task.cap, task.rule) == (7, Cap(40_000, 100_000), "a.toml:1")
        assert set(levels(world.client)) == {2}
        world.put("a.toml", SLEEP, weight=8)
        assert (task.task.weight, task.task.cap, task.task.timeslice_us, task.controls) == (8, None, None, {})
        assert set(levels(world.client)) == {0}
        world.drop("a.toml")
        assert not world.processes.managed
        assert not world.processes.roots
        assert slices(world.client) == found
        world.put("a.toml", SLEEP)
        await scans(world)
        assert list(world.processes.managed) == [one]

    revising(test, monkeypatch)


def test_only_those_are_asked_about_again_whom_it_may_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    revised = Placement.revised

    def noted(self: Placement, managed: ManagedTask) -> object:
        asked.append(managed.task.key.pid)
        return revised(self, managed)

    async def test(world: Revised, one: int) -> None:
        world.put("a.toml", SLEEP, weight=7)
        await scans(world)
        monkeypatch.setattr(Placement, "revised", noted)
        world.put("b.toml", 'container = "x"', weight=8)
        world.put("c.toml", 'cgroup = "/nowhere/*"', weight=8)
        assert asked == []
        world.put("d.toml", f'cgroup = "{cgroup_of(one)[0]}"' if cgroup_of(one)[0] else "user = 0", weight=9)
        assert set(asked) == {one}

    revising(test, monkeypatch)


def test_a_control_that_the_driver_refuses_keeps_nothing_else_from_being_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: Revised, one: int) -> None:
        world.put("a.toml", SLEEP, weight=7)
        await scans(world)

        def refuse(*_: object) -> None:
            raise NotSupportedError("no")

        monkeypatch.setattr(ManagedTask, "set_control", refuse)
        world.put("a.toml", SLEEP, weight=8, interleave="high")
        task = world.task(one)
        assert (task.task.weight, task.controls) == (8, {})
        assert world.processes.roots[one].refused == {"interleave"}
        monkeypatch.undo()

    revising(test, monkeypatch)


def test_what_a_user_set_wins_key_by_key_and_keeps_it_managed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Revised, one: int) -> None:
        world.put("a.toml", SLEEP, weight=7, cap=40)
        await scans(world)
        world.manager.change(one, {"burst": "5ms", "weight": "70"}, ME)
        world.put("a.toml", SLEEP, weight=8, cap=50)
        task = world.task(one)
        assert (task.task.weight, task.task.cap) == (70, Cap(50_000, 100_000, 5_000))
        world.drop("a.toml")  # the burst goes with a cap: all stays as it was, and that is said
        assert (task.task.weight, task.task.cap) == (70, Cap(50_000, 100_000, 5_000))
        assert "a burst goes with a cap" in "".join(world.manager.rule_troubles())
        world.manager.change(one, {"cap": "30", "class": "batch"}, ME)
        world.put("a.toml", SLEEP, weight=9)
        assert (task.task.weight, task.task.task_class) == (70, TaskClass.BATCH)
        assert world.manager.rule_troubles() == []

    revising(test, monkeypatch)


def test_what_a_rule_gives_a_group_is_for_its_tree_while_that_is_of_another_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: Revised, one: int) -> None:
        world.put("a.toml", SLEEP, memory="4G", group="team")
        await scans(world)
        own, task = OwnSettings(world.manager), world.task(one)
        quota, ruled = world.processes.roots[one].quota, 4 << 30
        assert (task.shared_memory, quota.limit) == (ruled, None)
        await own.manage(one, {"group": "mine"}, None, ME)
        assert (task.shared_memory, quota.limit) == (None, ruled)
        own.leave(one, ME)
        assert (task.shared_memory, quota.limit) == (ruled, None)
        world.manager.change(one, {"group": "mine"}, ME)
        assert (task.shared_memory, quota.limit) == (None, ruled)

    revising(test, monkeypatch)


def test_what_was_set_for_a_child_alone_wins_over_rules_that_come_later() -> None:
    async def test(world: Managed) -> None:
        assert isinstance(world, Revised)
        with child() as one, child() as away:
            world.tree([one, away])
            root = await world.launched(cap="50")
            for pid in (PID, one, away):
                await world.adopt(root, pid)
            process = world.processes.managed[away]
            world.processes.drop(process, process.keys(), by_itself=True)
            for pid in (one, away):
                world.manager.change(pid, {"weight": "70"}, ME)
                world.manager.change(pid, {"class": "batch"}, ME)  # beside what was set before
            world.put("a.toml", f"user = {ME}", weight=8, cap=40, timeslice="3ms", **{"class": "latency"})
            (kept,) = world.processes.away(away)
            tasks = [world.task(one).task, kept.task, world.task().task]
            assert [(task.weight, task.task_class) for task in tasks] == [
                (70, TaskClass.BATCH), (70, TaskClass.BATCH), (8, TaskClass.LATENCY),
            ]  # fmt: skip
            assert {(task.cap, task.timeslice_us) for task in tasks} == {(Cap(50_000, 100_000), 3_000)}

    a_daemon(test, None, Revised)


def test_the_main_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(f"[limits]\ntasks = 5\n[[rule]]\n{SLEEP}\nset.weight = 7\n")

    async def test(world: Revised, one: int) -> None:
        await scans(world)
        assert world.task(one).task.weight == 7
        path.write_text(f"[[rule]]\n{SLEEP}\nset.weight = 8\n")
        await asyncio.gather(world.revision.reload(), world.revision.reload())
        assert (world.task(one).task.weight, world.placement.rules.limits.tasks) == (8, None)
        path.write_text("x")
        with pytest.raises(UsageError, match=r"rules\.toml:1"):
            await world.revision.reload()
        await world.revision.reload_or_say()
        assert world.task(one).task.weight == 8
        assert len(world.manager.rule_troubles()) == 1
        world.rules_file = None  # the usual file is gone
        await world.revision.reload()
        assert not world.processes.managed
        assert world.manager.rule_troubles() == []

    revising(test, monkeypatch, path)


def test_users_see_the_rules_that_their_processes_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\nuser = 4711\n\n[[rule]]\nset.weight = 3\nlabels.pod = "x"\n')

    async def test(world: Revised, one: int) -> None:
        await scans(world)
        owner = rules_view(world.manager, ME)
        assert [(rule.rule, rule.processes) for rule in owner.rules] == [("rules.toml:1", 0), ("rules.toml:4", 1)]
        assert [(file.file, file.rules) for file in owner.files] == [(str(path), 2)]
        assert [file.trouble for file in owner.files] == [""]
        path.write_text("[[rule]]\nset.weight = 0\n")
        await world.revision.reload_or_say()
        (file,) = rules_view(world.manager, ME).files
        assert (file.file, file.rules) == (str(path), 2)  # those of before stay
        assert f"{path}:2" in file.trouble
        stranger = rules_view(world.manager, STRANGER)
        assert (stranger.rules, stranger.files, stranger.notes) == ([], [], [])
        world.processes.roots[one].uid = STRANGER
        (rule,) = rules_view(world.manager, STRANGER).rules
        assert (rule.rule, rule.labels, rule.sets, rule.processes) == ("rules.toml:4", {"pod": "x"}, {"weight": "3"}, 1)

    revising(test, monkeypatch, path)


def test_memory_that_rules_give_one_with_work_is_set_with_its_other_settings_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a rule refuses to change it does not change by half."""

    async def test(world: Revised, one: int) -> None:
        world.put("a.toml", SLEEP, weight=7, memory="2G")
        await scans(world)
        root = world.processes.roots[one]
        assert root.quota.limit == 2 << 30
        scheduler = world.gpus.scheduler(world.task(one).task.key.gpu)
        monkeypatch.setattr(scheduler, "refusal", lambda task: "it would not fit")
        world.put("a.toml", SLEEP, weight=8, memory="3G")
        assert (world.task(one).task.weight, root.quota.limit) == (7, 2 << 30)
        monkeypatch.undo()

    revising(test, monkeypatch)


def test_memory_that_rules_give_to_one_without_work_follows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Revised, one: int) -> None:
        odd = world.processes.add_root(PID, {"burst": "5ms"})  # which goes with no rule here
        root = world.processes.add_root(one, {})
        for memory, gib in (("4G", 4), ("3G", 3)):
            world.put("a.toml", SLEEP, memory=memory)
            assert (root.quota.limit, odd.quota.limit) == (gib << 30, None)
            assert not root.quota.take_note("GPU", 4 << 30)  # what it holds already it keeps
        world.put("b.toml", 'container = "x"', memory="1G")
        assert root.quota.limit == 3 << 30
        world.put("a.toml", SLEEP)
        assert root.quota.limit is None

    revising(test, monkeypatch)


@pytest.mark.parametrize(
    ("ended", "concerned", "matched", "none"),
    [
        (False, {1}, set(), True),
        (False, {1}, {1}, False),
        (False, {2, 3}, set(), False),  # nobody asks about it
        (True, {2, 3}, {1}, True),
        (True, {2, 3}, {3}, False),  # one that is left of it counts
        (True, {2}, set(), False),
    ],
)
def test_a_tree_has_no_rule_when_none_names_its_top_or_any_that_is_left(
    ended: bool, concerned: set[int], matched: set[int], none: bool
) -> None:
    world: Any = SimpleNamespace(_may_have_rule=lambda pid, task: pid in matched)
    root: Any = SimpleNamespace(pid=1, ended=ended)
    tasks: Any = {2: "a task", 3: "another"}
    assert Revision._has_no_rule(world, root, tasks, concerned.__contains__) is none
    if ended:
        assert not Revision._has_no_rule(world, root, {}, concerned.__contains__)  # nothing is left
