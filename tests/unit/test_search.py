"""Looking for processes: when, below which roots, by which rules; and queued tasks that come in when there is room."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from runlist.daemon.tasks.managed import Root, SuspendedBy
from runlist.daemon.tree import look_schedule, search
from runlist.daemon.tree.look_schedule import LookSchedule
from runlist.errors import NoTargetError, RunlistError
from runlist.model import TaskClass
from runlist.proc import process
from runlist.proc.borrow import OwnRight
from tests.fixtures.adoption import PID, World, child, own_usage, slices, until
from tests.fixtures.daemon import PATIENCE_S
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.manager import Managed, a_daemon

# As they are to be: taken from the code they would hold whatever it says.
QUIET_S, SETTLE_S, TRIES = 0.05, 1.5, 3

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

BRIEF_S = QUIET_S + 0.02

# -- when ------------------------------------------------------------------------------------------


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the schedule's clock."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(look_schedule, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def set_to(seconds: float) -> None:
        clock.now = 100.0 + seconds

    return set_to


def test_one_look_when_the_open_files_have_come_to_rest(at: Callable[[float], None]) -> None:
    schedule = LookSchedule()
    assert not schedule.due(1, 5)
    at(0.03)
    assert not schedule.due(1, 6)
    at(0.03 + QUIET_S - 0.001)
    assert not schedule.due(1, 6)
    at(0.03 + QUIET_S + 0.001)
    assert schedule.due(1, 6)
    at(9.0)
    assert not schedule.due(1, 6)  # that was looked at
    assert not schedule.due(1, 5)  # closing is a change, too
    at(9.0 + QUIET_S + 0.001)
    assert schedule.due(1, 5)
    assert schedule.due(1, 0, at_once=True)  # and whoever closed all had some before


def test_one_that_never_rests_is_looked_at_all_the_same(at: Callable[[float], None]) -> None:
    schedule = LookSchedule()
    looks = []
    for step in range(400):
        at(0.01 * step)
        if schedule.due(1, step):
            looks.append(0.01 * step)
    assert looks == pytest.approx([SETTLE_S, 2 * SETTLE_S + 0.01], abs=0.02)


def test_it_is_settled_a_while_after_the_last_change(at: Callable[[float], None]) -> None:
    schedule = LookSchedule()
    assert schedule.settled
    schedule.due(1, 5)
    schedule.due(2, 5)
    at(SETTLE_S + 0.1)
    assert schedule.settled
    schedule.due(2, 6)
    assert not schedule.settled
    at(2 * SETTLE_S)
    assert not schedule.settled
    at(2 * SETTLE_S + 0.2)
    assert schedule.settled


def test_one_whose_files_cannot_be_counted_is_not_looked_at(at: Callable[[float], None]) -> None:
    schedule = LookSchedule()
    for second in range(5):
        at(float(second))
        assert not schedule.due(1, -1)


def test_what_was_looked_at_or_forgotten(at: Callable[[float], None], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {1: 5, 2: 7}
    monkeypatch.setattr(look_schedule, "descriptor_count", lambda pid: counts.get(pid, -1))
    schedule = LookSchedule()
    schedule.looked_at(1)
    schedule.looked_at(2)
    schedule.forget_gone({1: 5, 2: -1})
    for pid in (1, 2):
        schedule.due(pid, 5 if pid == 1 else 7)
    at(1.0)
    assert not schedule.due(1, 5)  # it is as it was
    assert schedule.due(2, 7)  # another process of that number


# -- below roots and by rules ----------------------------------------------------------------------


async def scans(world: World) -> None:
    """Twice: what is new must come to rest in between."""
    for _ in range(2):
        await world.search.scan()
        await asyncio.sleep(BRIEF_S)


async def scans_until(world: World, condition: Callable[[], object]) -> None:
    """As often as it takes: a busy machine comes to rest late."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await scans(world)


def borrowing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the daemon's own right reach the processes in memory."""
    monkeypatch.setattr(OwnRight, "borrow", lambda self, pid, pidfd, fd: world.borrower.borrow(pid, pidfd, fd))


def test_a_scan_finds_what_is_below_the_roots_and_not_the_daemon() -> None:
    async def test(world: Managed) -> None:
        with child() as one, child() as other:
            clients = world.tree([one, other])
            root = world.root(timeslice="5000")
            root.excluded.add(other)
            await scans_until(world, lambda: world.processes.managed)
            assert list(world.processes.managed) == [one]
            assert [slices(client)[0] for client in clients.values()] == [2048, 5000, 2048]

    a_daemon(test)


def test_of_a_part_of_a_tree_those_are_told_that_are_managed_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    root, other = SimpleNamespace(excluded={4}), SimpleNamespace()
    did: list[tuple[str, int]] = []

    async def tree_of(top: int) -> list[int]:
        return [top, 2, 3, 4, 5]

    async def adopt(within: object, pid: int, *, new_only: bool) -> None:
        assert within is root
        assert not new_only
        did.append(("adopt", pid))
        if pid == 3:
            raise NoTargetError("it ended")

    monkeypatch.setattr(search, "_tree_of", tree_of)
    managed = {1: SimpleNamespace(root=root), 2: SimpleNamespace(root=other), 4: SimpleNamespace(root=root)}
    world: Any = SimpleNamespace(
        _adoption=SimpleNamespace(adopt=adopt),
        _processes=SimpleNamespace(managed=managed),
        _schedule=SimpleNamespace(looked_at=lambda pid: did.append(("looked at", pid))),
    )
    assert asyncio.run(search.Search.everything_below(world, cast("Root", root), 1)) == [1]
    assert did == [("adopt", 1), ("looked at", 1), ("adopt", 2), ("adopt", 3), ("adopt", 5)]


def test_a_look_without_a_walk_takes_nobody_who_is_not_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was below a root may have ended since, and its id may be another's."""

    async def test(world: Managed) -> None:
        with child() as one:
            world.tree([one])
            world.root(timeslice="5000")
            await world.search.scan(walk=False)  # nobody has walked yet: this one does
            with child() as later:
                world.tree([later])
                parents: dict[int, int] = {}
                monkeypatch.setattr(process, "parent_of", lambda pid: parents.get(pid, PID))
                parents |= {one: 1, 1: 0}
                await asyncio.sleep(BRIEF_S)
                for _ in range(2):
                    await world.search.scan(walk=False)
                    await asyncio.sleep(BRIEF_S)
                assert list(world.processes.managed) == []
                parents.clear()
                await scans(world)
                assert later in world.processes.managed

    a_daemon(test)


def test_one_that_lent_a_file_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come when nobody could reach the process, and after the last change of its open files."""

    async def test(world: Managed) -> None:
        with child() as one:
            looks = []

            async def adopt(root: object, pid: int, **_: bool) -> None:
                looks.append(pid)

            monkeypatch.setattr(world.adoption, "adopt", adopt)
            world.root(one)
            await scans(world)
            await scans(world)
            assert looks == [one]
            world.search.look_anew(one)
            await scans(world)
            assert looks == [one, one]

    a_daemon(test)


def test_one_that_cannot_be_managed_is_named_with_the_reason_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        with child() as one, child() as other:
            world.tree([one, other])
            world.root()
            policy = world.gpus.scheduler(UUIDS[0])
            monkeypatch.setattr(policy, "refusal", lambda task: "no room" if task.key.pid == one else None)
            await scans_until(world, lambda: world.processes.left and world.processes.managed)
            assert list(world.processes.managed) == [other]
            assert world.processes.left == {one: f"process {one} is not managed: no room"}
        await world.search.scan()
        assert world.processes.left == {}

    a_daemon(test)


def test_whoever_ran_a_tree_is_told_of_the_first_that_is_not_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:  # a look that fails for another reason may go well the next time
        with child() as one, child() as two:
            world.tree([one, two])
            adopt, failed, told = world.adoption.adopt, list[int](), list[str]()

            async def fails_once(root: Root, pid: int, *, new_only: bool) -> None:
                if pid not in failed:
                    failed.append(pid)
                    raise RunlistError("it went while it was looked at")
                await adopt(root, pid, new_only=new_only)

            monkeypatch.setattr(world.adoption, "adopt", fails_once)
            monkeypatch.setattr(world.gpus.scheduler(UUIDS[0]), "refusal", lambda task: "no room")
            world.root().tell = told.append
            await scans_until(world, lambda: "".join(world.processes.left.values()).count("no room") == 2)
            assert told in ([f"process {each} is not managed: no room"] for each in (one, two))

    a_daemon(test)


def test_nothing_is_said_of_one_that_ends_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on an H200: a warning for every program that was short."""

    async def test(world: Managed) -> None:
        with child() as one, capture_logs() as lines:
            world.tree([one])
            world.root()
            looked: list[int] = []

            async def adopt(root: Root, pid: int, **_: object) -> None:
                if pid != one:  # of other tests
                    return
                os.kill(pid, signal.SIGKILL)
                await until(lambda: process.owner_of(pid) is None)
                looked.append(pid)
                raise NoTargetError(f"process {pid} does not exist")

            monkeypatch.setattr(world.adoption, "adopt", adopt)
            async with asyncio.timeout(PATIENCE_S):
                while not looked:
                    await scans(world)
            assert (looked, world.processes.left) == ([one], {})
        assert [line for line in lines if line["log_level"] == "warning"] == []

    a_daemon(test)


def test_a_look_that_failed_is_repeated_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of the driver may go while it is asked about; a program's open files may never change again."""

    async def test(world: Managed) -> None:
        looks: list[int] = []
        adopt = world.adoption.adopt

        async def fails(root: Root, pid: int, *, new_only: bool) -> None:
            looks.append(pid)
            if pid == two or len(looks) <= 3:
                raise RunlistError("it went while it was looked at")
            await adopt(root, pid, new_only=new_only)

        monkeypatch.setattr(world.adoption, "adopt", fails)
        with child() as one, child() as two:
            world.tree([one, two])
            world.root()
            for _ in range(8):
                await scans(world)
            assert list(world.processes.managed) == [one]
            assert list(world.processes.left) == [two]
            assert looks.count(two) == 1 + TRIES

    a_daemon(test)


def test_after_a_look_that_went_well_as_many_may_fail_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: Managed) -> None:
        looks: list[int] = []

        async def fails(root: Root, pid: int, *, new_only: bool) -> None:
            looks.append(pid)
            if len(looks) != TRIES:  # one look of all goes well
                raise RunlistError("it went while it was looked at")

        monkeypatch.setattr(world.adoption, "adopt", fails)
        with child() as one:
            world.root(one)
            for _ in range(TRIES):
                await scans(world)
            assert looks == [one] * TRIES
            world.search.look_anew(one)
            for _ in range(TRIES + 3):
                await scans(world)
            assert looks == [one] * (TRIES + 1 + TRIES)

    a_daemon(test)


def test_a_look_puts_back_what_a_process_set_itself_meanwhile() -> None:
    async def test(world: Managed) -> None:
        with child() as one:
            client = world.tree([one])[one]
            world.root(one, timeslice="5000").borrowers = (world.borrower,)
            await scans_until(world, lambda: slices(client)[0] == 5_000)
            for node in client.objects.values():
                node.slice_us = node.slice_us and 9_000
            world.search.look_anew(one)
            await scans_until(world, lambda: slices(client)[0] == 5_000)

    a_daemon(test)


@pytest.mark.parametrize(
    ("count", "lent_for", "expected"), [(-1, -1.0, False), (-1, QUIET_S / 2, False), (-1, 1.0, True), (0, 1.0, False)]
)
def test_where_open_files_cannot_be_counted_lent_ones_tell(
    count: int, lent_for: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: Managed) -> None:
        monkeypatch.setattr(search, "descriptor_count", lambda pid: count)
        monkeypatch.setattr(world.adoption.lending, "lent_for", lambda pid: lent_for)
        looks = []

        async def adopt(root: Root, pid: int, *, new_only: bool) -> None:
            looks.append(pid)

        monkeypatch.setattr(world.adoption, "adopt", adopt)
        with child() as one:
            world.root(one)
            await world.search.scan()
        assert looks == ([one] if expected else [])

    a_daemon(test)


RULES = """
[[rule]]
command = "sleep*"
set = { class = "batch" }
"""


def test_with_rules_any_process_may_be_wanted_next(tmp_path: Path, at: Callable[[float], None]) -> None:
    (tmp_path / "rules.toml").write_text(RULES)

    async def settled(world: Managed) -> None:
        assert world.search.settled

    async def not_settled(world: Managed) -> None:
        assert not world.search.settled

    a_daemon(settled)
    a_daemon(not_settled, tmp_path / "rules.toml")


def test_rules_name_the_processes_on_the_gpus_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules.toml").write_text(RULES)

    async def test(world: Managed) -> None:
        borrowing(world, monkeypatch)
        with child() as one, child() as other:
            world.tree([one, other])
            world.census.pids = lambda: {PID, one}
            await scans_until(world, lambda: world.processes.managed)
            assert list(world.processes.roots) == list(world.processes.managed) == [one]
            assert world.task(one).task.task_class is TaskClass.BATCH
            world.manager.detach(one, 0)
            await scans(world)
            assert world.processes.roots == {}  # it was let go: a rule does not take it again
            world.census.pids = set
            await world.search.scan()
            world.census.pids = lambda: {one}
            await scans_until(world, lambda: world.processes.roots)
            assert list(world.processes.roots) == [one]

    a_daemon(test, tmp_path / "rules.toml")


def test_what_a_process_sends_is_for_the_root_of_its_user(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULES)

    async def without_rules(world: Managed) -> None:
        with child() as one:
            assert world.search.root_for(one, 1000) is None
            root = world.root()
            assert world.search.root_for(one, 1000) is root  # root's own takes all
            root.uid = 1000
            assert world.search.root_for(one, 1000) is root
            assert world.search.root_for(one, 1001) is None
            root.excluded.add(one)
            assert world.search.root_for(one, 1000) is None

    async def by_a_rule(world: Managed) -> None:
        with child() as one:
            await until(lambda: world.search.root_for(one, 0))  # not read at once on busy cores
            root = world.search.root_for(one, 0)
            assert root is world.processes.roots[one]
            assert root is world.search.root_for(one, 0)
            assert root.old

    a_daemon(without_rules)
    a_daemon(by_a_rule, tmp_path / "rules.toml")


# -- every second ----------------------------------------------------------------------------------


def test_queued_tasks_come_in_when_there_is_room_the_longest_waiting_first(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("[limits]\ntasks = 2\n")

    async def test(world: Managed) -> None:
        with child() as one, child() as two, child() as three:
            pids = (one, two, three)
            world.tree(list(pids))
            root = world.root()
            for pid in (PID, *pids):
                await world.adopt(root, pid)
            waits = {pid: world.task(pid).queued for pid in (PID, *pids)}
            assert waits == {PID: False, one: False, two: True, three: True}
            assert world.task(two).share.enabled is world.task(three).share.enabled is False
            world.checks.check(files=True, slices=False)
            assert world.task(two).queued
            world.processes.forget(world.processes.managed[PID], restore=True)
            world.checks.check(files=True, slices=False)
            assert [world.task(pid).queued for pid in pids] == [False, False, True]
            assert world.task(two).share.enabled
            assert SuspendedBy.ROOM not in world.task(two).suspended_by

    a_daemon(test, tmp_path / "rules.toml")


def test_a_slice_that_a_process_sets_itself_is_put_back_and_counted() -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        await world.adopt(world.root(timeslice="5000"))
        for node in client.objects.values():
            node.slice_us = node.slice_us and 9_000
        world.checks.check(files=True, slices=False)
        assert slices(client)[0] == 9_000
        world.checks.check(files=True, slices=True)
        assert slices(client)[0] == 5_000  # the compute group's: the others' do not matter
        assert world.task().counts["slices_put_back"] == 1
        world.checks.check(files=True, slices=True)
        assert world.task().counts["slices_put_back"] == 1

    a_daemon(test)


def test_a_slice_that_cuda_sets_while_it_makes_a_context_is_the_original_one() -> None:
    async def test(world: Managed) -> None:
        client = world.tenant()
        root = world.root(timeslice="5000")
        await world.adopt(root, new_only=True)
        for node in client.objects.values():
            node.slice_us = node.slice_us and 3_000
        world.checks.check(files=True, slices=True)
        assert (slices(client)[0], world.keeping.renewed, world.task().counts["slices_put_back"]) == (5_000, [1], 0)
        world.processes.remove_root(root)
        assert slices(client)[0] == 3_000

    a_daemon(test)
