"""What is kept of a process that the kernel saw: what it counted of it, what it freed, and what it was refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from runlist.daemon.tasks.managed import Count
from runlist.daemon.tree import sightings
from runlist.daemon.tree.sightings import Sightings
from runlist.model import TaskClass
from runlist.protocol.kernel_autogen import Kind, Refusal, What
from tests.unit.test_sightings import CLIENT, FD, PID, World, objects


def with_one(test: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World()
        await test(world)
        world.sightings.close()

    asyncio.run(run())


class Kernel:
    """What the programs counted of processes, and how often that was asked."""

    def __init__(self) -> None:
        self.news = True
        self.asked = 0
        self.maps: dict[str, Counter[int]] = {"controls": Counter(), "refusals": Counter()}

    def has_counted(self) -> bool:
        return self.news

    def counted(self, name: str) -> Counter[int]:
        self.asked += 1
        return self.maps[name]

    def forget(self, pid: int | None = None) -> None:
        pass


def counting() -> Any:
    return SimpleNamespace(counts=Counter[Count](), counted=Counter[Count]())


def test_tasks_know_what_the_kernel_counted_of_their_process_and_forget_none_of_it() -> None:
    async def test(world: World) -> None:
        kernel: Any = Kernel()
        world.sightings._kernel = kernel
        tasks = [counting() for _ in range(2)]
        world.managed[PID] = SimpleNamespace(tasks=dict(enumerate(tasks)))
        kernel.maps["controls"].update({PID: 5, PID + 1: 9})
        kernel.maps["refusals"].update({PID: 2})
        world.sightings.count()
        assert [dict(task.counts) for task in tasks] == [{Count.CONTROLS_ASKED: 5, Count.REQUESTS_REFUSED: 2}] * 2
        kernel.maps["controls"][PID] = 3  # the map forgets who did nothing for long
        kernel.maps["refusals"][PID] = 4
        world.sightings.count()
        assert dict(tasks[0].counts) == {Count.CONTROLS_ASKED: 5, Count.REQUESTS_REFUSED: 4}
        asked, kernel.news = kernel.asked, False
        world.sightings.count()
        assert kernel.asked == asked
        late = counting()
        world.managed[PID + 1] = SimpleNamespace(tasks={"GPU-0": late})
        world.sightings.count()
        assert dict(late.counts)[Count.CONTROLS_ASKED] == 9
        asked = kernel.asked
        world.sightings.count()
        assert kernel.asked == asked

    with_one(test)


def test_what_was_counted_before_a_task_was_away_counts_once() -> None:
    """Its GPU has it: each checkpoint of a process counted all that it had ever asked for once more."""

    async def test(world: World) -> None:
        kernel: Any = Kernel()
        world.sightings._kernel = kernel
        task = counting()
        world.managed[PID] = SimpleNamespace(tasks={"GPU-0": task})
        gpu = Counter[Count]()
        for asked in (5, 7, 7):
            kernel.maps["controls"][PID] = asked
            world.sightings.count()
            gpu += task.counts
            task.counts.clear()
        assert gpu == {Count.CONTROLS_ASKED: 7}

    with_one(test)


def test_what_was_freed_is_not_looked_at() -> None:
    async def test(world: World) -> None:
        made = [world.event(kind) for kind in (Kind.GROUP, Kind.CHANNEL, Kind.COMPUTE)]
        gone = world.event(Kind.CHANNEL)
        world.sightings.hear([*made, gone, msgspec.structs.replace(gone, what=What.FREED)])
        world.sightings.hear([msgspec.structs.replace(gone, what=What.FREED, client=CLIENT + 9)])  # never seen
        world.sightings.hear([msgspec.structs.replace(gone, what=What.FREED, pid=PID + 9)])
        await world.looked(1)
        ((seen, since), *_) = world.looks
        assert objects(seen) == [event.object for event in made]
        assert (since, seen[0].fd, seen[0].client) == (made[1].time, FD, CLIENT)

    with_one(test)


def test_of_a_client_that_was_freed_nothing_is_left() -> None:
    async def test(world: World) -> None:
        other = msgspec.structs.replace(world.event(Kind.CHANNEL), client=CLIENT + 1, fd=FD + 1)
        client = msgspec.structs.replace(world.event(Kind.CLIENT), what=What.FREED)
        world.sightings.hear([world.event(Kind.CHANNEL), other, client])
        await world.looked(1)
        ((seen, _), *_) = world.looks
        assert [(one.client, one.fd) for one in seen] == [(CLIENT + 1, FD + 1)]

    with_one(test)


def test_the_entry_of_the_policy_map_tells_of_one_that_is_new_and_of_nobody_once_it_was_looked_at() -> None:
    async def test(world: World) -> None:
        match = object()
        world.entry = SimpleNamespace(match=lambda: match)
        foretold: dict[int, object] = world.sightings._placement.foretold  # type: ignore[assignment]
        told: list[object] = []
        adopt = world._adopt

        async def noted(*arguments: Any, **more: Any) -> None:
            told.append(foretold.get(PID))
            await adopt(*arguments, **more)

        world.sightings._adoption.adopt_seen = noted  # type: ignore[method-assign]
        world.sightings.hear([msgspec.structs.replace(world.event(Kind.COMPUTE), entry=3)])
        await world.looked(1)
        await asyncio.sleep(0)
        assert (told, foretold) == ([match], {})
        world.managed.clear()
        world.sightings._forget(PID)
        world.made(Kind.COMPUTE)  # no entry named it
        await world.looked(2)
        assert told == [match, None]

    with_one(test)


def test_a_look_that_fails_is_left_to_the_ordinary_ones() -> None:
    async def test(world: World) -> None:
        async def failing(*_: object, **__: object) -> None:
            raise OSError(3, "No such process")

        adoption: Any = world.sightings._adoption
        adopt, adoption.adopt_seen = adoption.adopt_seen, failing
        world.entry = SimpleNamespace(match=object)
        world.sightings.hear([msgspec.structs.replace(world.event(Kind.COMPUTE), entry=3)])
        known = world.sightings._known[PID]
        await asyncio.wait([known.look])  # type: ignore[list-item]
        assert (world.left, known.look, world.sightings._placement.foretold) == ([PID], None, {})
        adoption.adopt_seen = adopt
        world.made(Kind.COMPUTE)
        await world.looked(1)

    with_one(test)


@pytest.mark.parametrize(
    ("why", "says"),
    [
        (Refusal.SLICES, "it changed how it is scheduled itself, which a.toml:1 forbids"),
        (Refusal.GROUPS, "it made more channel groups, which a.toml:1 forbids"),
        (Refusal.GPU, "it used a GPU that it was not given, which a.toml:1 forbids"),
        (99, "it did something, which a.toml:1 forbids"),
    ],
)
def test_what_one_was_refused_is_said_once_and_stops_nobody(why: int, says: str) -> None:
    async def test(world: World) -> None:
        world.entry = SimpleNamespace(rule=SimpleNamespace(where="a.toml:1"), match=lambda: None)
        world.made(Kind.GROUP)
        refused = msgspec.structs.replace(world.event(Kind.OTHER), what=What.REFUSED, parent=why)
        with capture_logs() as log:
            world.sightings.hear([refused, refused])
        said = [(line["event"], line["pid"], line["why"]) for line in log]
        assert said == [("a process was refused something", PID, says)]
        assert world.ran == []
        world.entry = None  # of rules that are no more
        with capture_logs() as log:
            world.sightings.hear([msgspec.structs.replace(refused, pid=PID + 1)])
        assert log == []

    with_one(test)


def test_of_our_own_processes_nothing_is_heard() -> None:
    async def test(world: World) -> None:
        world.processes.is_ours = lambda pid: pid == PID
        world.made(Kind.COMPUTE)
        await asyncio.sleep(0.01)
        assert (world.looks, world.sightings._known) == ([], {})

    with_one(test)


def test_so_many_objects_of_one_client_are_remembered_and_its_first_file_is_its_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sightings, "MOST_OBJECTS", 3)

    async def test(world: World) -> None:
        events = [msgspec.structs.replace(world.event(Kind.CHANNEL), fd=FD + number) for number in range(5)]
        world.sightings.hear(events)
        await world.looked(1)
        (((one,), _), *_) = world.looks
        assert (one.fd, list(one.objects)) == (FD, [event.object for event in events[:3]])

    with_one(test)


@pytest.mark.parametrize("task_class", [TaskClass.LATENCY, TaskClass.NORMAL])
def test_how_soon_there_was_room_is_told_to_the_task_that_it_was_made_for(task_class: TaskClass) -> None:
    async def test(world: World) -> None:
        world.task_class = task_class
        world.made(Kind.GROUP, gpu=1)
        world.made(Kind.COMPUTE)
        await world.looked(1)
        await asyncio.sleep(0)
        told = world.takes_in.tasks["GPU-0"].room_ms
        assert (told is not None, world.rooms) == (task_class is TaskClass.LATENCY, int(told is not None))

    with_one(test)


@pytest.mark.parametrize("begins", [False, True])
def test_at_the_end_all_looks_are_given_up(begins: bool) -> None:
    did: list[str] = []

    def to_cancel(name: str) -> Any:
        return SimpleNamespace(cancel=lambda: did.append(name))

    world: Any = SimpleNamespace(
        _known={1: SimpleNamespace(look=to_cancel("one")), 2: SimpleNamespace(look=None)},
        _beginning=to_cancel("the beginning") if begins else None,
        _corrections=SimpleNamespace(close=lambda: did.append("corrections")),
    )
    Sightings.close(world)
    assert did == ["one", *(["the beginning"] if begins else []), "corrections"]
    assert world._known == {}


def test_after_a_gap_everything_is_looked_at_once_what_an_earlier_daemon_knew_was() -> None:
    did: list[Any] = []
    known = {1: SimpleNamespace(look=None), 2: SimpleNamespace(look="a look"), 3: SimpleNamespace(look=None)}
    world: Any = SimpleNamespace(
        _known=known, _beginning=None, _forget=known.pop,
        _processes=SimpleNamespace(roots={7: "a root", 8: "another"}),
        _search=SimpleNamespace(look_again=did.append, rules_changed=lambda concerns: did.append(concerns(5))),
        _kernel=SimpleNamespace(forget=lambda: did.append("forgets")),
        _corrections=SimpleNamespace(set_all_right=lambda *, but: did.append(("all right but", but))),
    )  # fmt: skip
    world.gap = lambda: Sightings.gap(world)

    async def run() -> None:
        world._beginning = asyncio.get_running_loop().create_future()
        world.gap()
        assert did == []
        world._beginning.set_result(None)
        await asyncio.sleep(0)
        assert did == ["a root", "another", True, "forgets", ("all right but", 0)]
        assert list(known) == [2]
        did.clear()
        world._beginning = asyncio.get_running_loop().create_future()
        world.gap()
        world._beginning.cancel()
        await asyncio.sleep(0)
        assert did == []  # it ends

    asyncio.run(run())
