"""One user with thousands of processes of which the daemon remembers something: nobody waits while it looks at them."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runlist.daemon.requests.own import OwnSettings
from runlist.daemon.tasks.in_turn import FEW, InTurn, next_of
from runlist.daemon.tasks.managed import Asked, Away, ManagedTask, Own, Root
from runlist.daemon.tree import look_schedule, search
from runlist.model import Task, TaskClass, TaskKey
from runlist.proc import process
from runlist.proc.process import Program
from tests.fixtures.adoption import OF_CHILD, PID, child, own_usage
from tests.fixtures.daemon import NOBODY, needs_root
from tests.fixtures.fake_rm import UUIDS
from tests.fixtures.manager import ME, Managed, a_daemon

pytestmark = pytest.mark.usefixtures("own_usage")
__all__ = ["own_usage"]

MANY = 5 * FEW


@pytest.fixture
def many() -> Iterator[list[int]]:
    """Processes that do nothing."""
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(MANY)]
    yield [one.pid for one in started]
    for one in started:
        one.kill()
        one.wait()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of which one asked whether they run their program still."""
    pids: list[int] = []

    def now(program: Program, ask: object = Program.now) -> Program | None:
        pids.append(program.pid)
        return ask(program)  # type: ignore[operator,no-any-return]

    monkeypatch.setattr(Program, "now", now)
    return pids


def test_each_that_is_attached_costs_no_more_than_the_first(many: list[int], asked: list[int]) -> None:
    async def test(world: Managed) -> None:
        root = await world.launched()
        for pid in many:
            asked.clear()
            await world.manager.attach(pid, {"class": "batch"}, True, ME)
            assert len(asked) <= FEW + 2
        assert root.asked_of.keys() == set(many)
        ended = Asked(Program(many[0], 1, 0), {})
        root.asked_of |= {1 << 22 | number: ended for number in range(FEW)}
        for _ in range(MANY // FEW + 1):
            await world.manager.attach(many[-1], {"class": "batch"}, True, ME)
        assert root.asked_of.keys() == set(many)

    a_daemon(test)


def test_each_that_asks_for_itself_costs_no_more_than_the_first(many: list[int], asked: list[int]) -> None:
    async def test(world: Managed) -> None:
        await world.launched()
        own = OwnSettings(world.manager)
        for pid in many:
            asked.clear()
            await own.manage(pid, {"class": "batch"}, None, ME)
            assert len(asked) <= FEW + 2

    a_daemon(test)


def test_what_another_program_asked_for_is_not_the_next_ones() -> None:
    async def test(world: Managed) -> None:
        root = await world.launched()
        with child() as one:
            root.own = {pid: Own(Program(pid, 1, 0), {}, alone=False) for pid in range(1 << 22, (1 << 22) + FEW)}
            root.own[one] = before = Own(Program(one, 1, 0), {"weight": "7"}, alone=False)
            await OwnSettings(world.manager).manage(one, {"class": "batch"}, None, ME)
            assert root.own[one] is not before

    a_daemon(test)


def _away(root: Root, program: Program) -> None:
    key = TaskKey(program.pid, UUIDS[0])
    root.away[key] = Away(program, ManagedTask(Task(key, TaskClass.NORMAL, "x", root.uid, 0.0), root=root))


@needs_root
def test_tasks_that_are_away_are_looked_at_in_their_turn(many: list[int], asked: list[int]) -> None:
    """And those of another user as if there were no others."""

    async def test(world: Managed) -> None:
        root = world.root()
        for pid in many:
            _away(root, Program.of(pid))
        with child(NOBODY) as theirs:
            other = world.processes.add_root(theirs, {})
            _away(other, Program(theirs, 1, 0))
            for _ in range(MANY // FEW):
                before = len(asked)
                world.processes.forget_away()
                assert len(asked) - before <= FEW + 1
                assert other.away == {}
            assert set(asked) == {*many, theirs}
            assert len(asked) == MANY + 1
            _away(other, Program.of(theirs))
            seen = [world.processes.next_expected() for _ in range(MANY // FEW)]
            assert all(theirs in some and len(some) == FEW + 1 for some in seen)
            assert set().union(*seen) == {*many, theirs}
            root.away.clear()
            other.away.clear()

    a_daemon(test)


def test_what_was_put_back_and_has_ended_is_forgotten(many: list[int]) -> None:
    """Who attaches and detaches on and on fills no memory."""

    async def test(world: Managed) -> None:
        world.search.leave_alone(many)
        for pid in range(1 << 22, (1 << 22) + 10 * search.LEFT_ALONE):  # nobody's
            world.search.leave_alone([pid])
        left = world.search._left_alone
        assert len(left) < 2 * search.LEFT_ALONE
        assert {pid for pid, _ in left} >= set(many)

    a_daemon(test)


@pytest.mark.parametrize("walk", [True, False])
def test_a_tree_is_gone_through_in_a_thread_and_in_pieces(
    many: list[int], monkeypatch: pytest.MonkeyPatch, walk: bool
) -> None:
    counted: list[tuple[int, bool]] = []
    looks: list[tuple[int, int]] = []
    turns = 0

    def descriptor_count(pid: int) -> int:
        counted.append((pid, threading.current_thread() is threading.main_thread()))
        return -1

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def test(world: Managed) -> None:
        async def adopt(root: Root, pid: int, *, new_only: bool) -> None:
            looks.append((pid, turns))

        monkeypatch.setattr(world.adoption, "adopt", adopt)
        world.root()
        await world.search.scan()
        monkeypatch.setattr(search, "descriptor_count", descriptor_count)
        monkeypatch.setattr(look_schedule, "descriptor_count", descriptor_count)
        monkeypatch.setattr(search, "PIECE_S", 0.0)
        monkeypatch.setattr(world.adoption.lending, "lent_for", lambda pid: 1.0)  # each is worth a look
        looks.clear()
        busy = asyncio.create_task(others())
        await world.search.scan(walk=walk)
        busy.cancel()
        assert {pid for pid, _ in counted} >= {PID, *many}
        assert not any(waited for _, waited in counted)
        assert {pid for pid, _ in looks} >= set(many)
        assert looks[0][1] >= MANY

    a_daemon(test)


def test_who_is_on_the_gpus_is_asked_in_a_thread(tmp_path: Path) -> None:
    """Anybody who opens a GPU has it asked, on and on."""
    (tmp_path / "rules.toml").write_text('[[rule]]\nuser = 12345\nset = { class = "batch" }\n')
    waited: list[bool] = []

    async def test(world: Managed) -> None:
        def pids() -> set[int]:
            waited.append(threading.current_thread() is threading.main_thread())
            return {PID}

        world.census.pids = pids
        await world.search.scan()
        assert waited == [False]

    a_daemon(test, tmp_path / "rules.toml")


def test_who_is_above_many_is_asked_for_once(many: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def parent_of(pid: int, ask: Callable[[int], int | None] = process.parent_of) -> int | None:
        asked.append(pid)
        return ask(pid)

    monkeypatch.setattr(process, "parent_of", parent_of)
    above = process.parent_of(PID)
    assert above is not None
    asked.clear()
    assert process.those_below(PID, many, above) == set(many)
    assert sorted(asked) == sorted(many)
    asked.clear()
    assert process.those_below(many[0], [PID, *many, 1 << 30], PID) == {many[0]}
    assert sorted(asked) == sorted([*many[1:], 1 << 30])
    assert process.those_below(1 << 30, [*many, PID], PID) == set()
    assert process.those_below(above, [many[0], PID, 1], 1) == {many[0], PID}


def test_who_asks_for_itself_costs_no_more_with_many_below_it(many: list[int], asked: list[int]) -> None:
    async def test(world: Managed) -> None:
        root = await world.launched()
        own = OwnSettings(world.manager)
        for pid in many:
            world.tenant(pid, OF_CHILD)
            await world.adopt(root, pid)
        await own.manage(PID, {"class": "batch"}, None, ME)
        asked.clear()
        tasks = (await own.manage(PID, {"class": "latency"}, None, ME)).tasks
        assert {task.task.key.pid for task in tasks} == set(many)
        assert len(asked) <= FEW

    a_daemon(test)


def test_all_have_their_turn() -> None:
    known = dict.fromkeys(range(5))
    assert [[key for key, _ in next_of(known, 2)] for _ in range(4)] == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert next_of({}, 2) == []
    turns: InTurn[int] = InTurn(2)
    every = [(1, 8), (2, 4), (1, 6), (1, 7)]
    assert [sorted(turns.choose(every)) for _ in range(3)] == [[4, 6, 7], [4, 6, 8], [4, 7, 8]]
    assert turns.choose([]) == []
    assert turns.choose([(1, 6), (1, 9), (1, 7)]) == [6, 7]
