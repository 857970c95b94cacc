"""When a process is looked at that the kernel saw at work."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from runlist.daemon.tree import corrections, sightings
from runlist.daemon.tree.sightings import Sightings
from runlist.errors import UsageError
from runlist.model import Owner, TaskClass
from runlist.planes.interface import Seen
from runlist.planes.kernel.events import Event
from runlist.protocol.kernel_autogen import WATCH_OTHERS, Kind, What

PID, CLIENT, FD = os.getpid(), 0xC1D00001, 7


class World:
    """A daemon's parts that note how they were asked to look."""

    def __init__(self) -> None:
        self.managed: dict[int, Any] = {}
        self.looks: list[tuple[Sequence[Seen], float]] = []
        self.clock = itertools.count(1)
        self.gaps: list[int] = []
        self.corrected: list[int] = []
        self.asserted: list[int | None] = []
        self.takes: Callable[[], None] = lambda: None  # a correction
        self.takes_in: Any = SimpleNamespace(tasks={"GPU-0": SimpleNamespace(room_ms=None)})
        self.forgotten = 0
        self.pieces = 1  # in which all are set right
        self.entry: Any = None  # of the policy map
        self.checked: list[int] = []
        self.ran: list[set[str]] = []
        self.takes_all: Callable[[], None] = lambda: None
        self.machine = ["GPU-0"]
        self.root: object = SimpleNamespace(excluded=set(), uid=1000)
        self.rule_names_it = False  # and nobody else does
        self.rules = SimpleNamespace(give_critical=True)
        self.left_alone = False
        self.task_class = TaskClass.LATENCY
        self.rooms = 0
        self.room_of: Owner | None = None
        self.questions = 0  # of what class a process is to be
        self.left: list[int] = []  # to the ordinary looks
        self.gpu = SimpleNamespace(gpu="GPU-0", gives_room=True, make_room=self._make_room)
        processes = self.processes = SimpleNamespace(
            managed=self.managed,
            is_ours=lambda _: False,
            roots={},
            owners_of_clients=lambda: {CLIENT: PID},
            root_of=lambda _: None if self.rule_names_it else self.root,
        )
        self.sightings = Sightings(
            cast("Any", SimpleNamespace(is_file=lambda pid, fd: fd == FD)),
            cast("Any", processes),
            cast("Any", SimpleNamespace(adopt_seen=self._adopt)),
            cast(
                "Any",
                SimpleNamespace(correct=self._correct, assert_all=self._assert_all, check_files=self.checked.append),
            ),
            cast(
                "Any",
                SimpleNamespace(
                    root_of_new=lambda _: self.root,
                    rules_changed=self._noted,
                    look_anew=self.left.append,
                    is_left_alone=lambda _: self.left_alone,
                ),
            ),
            cast(
                "Any",
                SimpleNamespace(
                    all=lambda: [self.gpu],
                    run=lambda gpus, asked_for: self.ran.append(gpus),
                    numbered={0: "GPU-1", 1: "GPU-0"}.get,
                ),
            ),
            cast("Any", SimpleNamespace(foretold={}, class_of_new=self._class_of_new, rules=self.rules)),
            cast("Any", SimpleNamespace(forget=self._forget)),
            cast("Any", SimpleNamespace(entry=lambda _: self.entry)),
            cast("Any", SimpleNamespace(gpus=lambda: self.machine)),
        )

    def _forget(self, pid: int | None = None) -> None:
        del pid
        self.forgotten += 1

    def _make_room(self, owner: Owner) -> bool:
        self.rooms += 1
        self.room_of = owner
        return True

    def _class_of_new(self, pid: int, root: object, match: object) -> TaskClass:
        self.questions += 1
        assert (pid, root) == (PID, None if self.rule_names_it else self.root)
        assert match == (self.entry and self.entry.match())
        if self.task_class is TaskClass.BATCH:
            raise UsageError("bad settings")
        return self.task_class

    def _noted(self, concerns: object) -> None:
        """All is looked at again: how many were managed by then."""
        del concerns
        self.gaps.append(len(self.managed))

    def _assert_all(self, but: int | None) -> Iterator[None]:
        self.asserted.append(but)
        time.sleep(0.002)
        self.takes_all()
        yield from [None] * self.pieces

    def _correct(self, pid: int, *, off: bool) -> None:
        assert off
        self.corrected.append(pid)
        self.takes()

    async def _adopt(self, root: object, pid: int, seen: Sequence[Seen], since: float) -> None:
        del root
        self.looks.append((seen, since))
        self.managed[pid] = self.takes_in

    def event(self, kind: Kind, gpu: int = 0) -> Event:
        """The process makes an object."""
        number = next(self.clock)
        return Event(What.MADE, kind, float(number), 0, PID, PID, 0, FD, CLIENT, 2, number, 0, "python", gpu=gpu)

    def made(self, kind: Kind, gpu: int = 0) -> float:
        """It is heard at once; returns when it was, by the kernel's clock."""
        event = self.event(kind, gpu)
        self.sightings.hear([event])
        return event.time

    async def looked(self, times: int) -> None:
        """Return once it was looked at so often."""
        while len(self.looks) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def going_on(self, until: int) -> None:
        """It makes channels without a pause until it was looked at so often."""
        while len(self.looks) < until:
            self.made(Kind.CHANNEL)
            await asyncio.sleep(0.0001)  # a fast machine makes more than is remembered


def objects(seen: Sequence[Seen]) -> list[int]:
    return [number for one in seen for number in one.objects]


def test_one_that_nobody_manages_is_looked_at_once_it_has_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on making objects, and would be looked at in an hour."""
    monkeypatch.setattr(sightings, "LONGEST_S", 3600.0)

    async def run() -> None:
        world = World()
        world.made(Kind.GROUP)
        first = world.made(Kind.CHANNEL)
        world.made(Kind.COMPUTE)
        await world.going_on(1)
        seen, since = world.looks[0]
        assert since == first
        assert (seen[0].fd, seen[0].client, seen[0].objects[:3]) == (FD, CLIENT, (1, 2, 3))
        world.sightings.close()

    asyncio.run(run())


def test_one_that_is_managed_comes_to_rest_first_and_is_looked_at_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "LONGEST_S", 0.05)
    monkeypatch.setattr(sightings, "QUIET_S", 3600.0)

    async def run() -> None:
        world = World()
        world.managed[PID] = object()
        began = time.monotonic()
        first = world.made(Kind.CHANNEL)
        world.made(Kind.COMPUTE)
        await world.going_on(1)
        assert time.monotonic() - began >= 0.05
        assert world.looks[0][1] == first
        later = world.made(Kind.COPY)
        await world.looked(2)
        seen, since = world.looks[1]
        assert since == later
        assert max(objects(seen)) == later
        world.sightings.close()

    asyncio.run(run())


def test_one_that_makes_more_and_more_is_left_to_the_ordinary_looks_which_hear_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else has them look: they do not go by who opens a GPU while the kernel tells of groups."""
    monkeypatch.setattr(sightings, "LOOKS_A_SECOND", 3)

    async def run() -> None:
        world = World()
        while not world.left:  # it takes four within a second
            world.made(Kind.COMPUTE)
            await asyncio.sleep(0.005)
            assert not world.left or len(world.looks) >= 3
        assert world.left == [PID]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_one_of_too_many_is_left_to_the_ordinary_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "MOST_PROCESSES", 0)

    async def run() -> None:
        world = World()
        world.made(Kind.GROUP)
        assert world.left == [PID]

    asyncio.run(run())


def test_what_an_earlier_daemon_knew_is_looked_at_before_all_else() -> None:
    async def run() -> None:
        world = World()
        world.sightings.begin([world.event(kind) for kind in (Kind.GROUP, Kind.CHANNEL, Kind.COMPUTE)])
        world.sightings.gap()  # as the loader begins
        assert world.gaps == []
        await world.sightings.begun()
        await asyncio.sleep(0)
        assert world.gaps == [1]
        world.sightings.gap()
        assert world.gaps == [1, 1]
        world.sightings.close()

    asyncio.run(run())


def test_what_was_not_told_may_have_stopped_anybody() -> None:
    async def run() -> None:
        world = World()
        world.sightings.gap()
        while not world.asserted:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert world.asserted == [sightings.NOBODY]
        world.sightings.close()

    asyncio.run(run())


def test_the_driver_is_asked_about_one_whose_group_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of each: what comes within a moment is one question, as for a slice that was changed."""
    monkeypatch.setattr(corrections, "CORRECT_EVERY_S", 0.05)

    async def run() -> None:
        world = World()
        group = world.event(Kind.GROUP)
        channel = world.event(Kind.CHANNEL)
        world.sightings.hear([group, channel, msgspec.structs.replace(channel, what=What.FREED)])
        assert world.corrected == []
        world.sightings.hear([msgspec.structs.replace(group, what=What.FREED)] * 2)
        assert world.corrected == [PID]
        while len(world.corrected) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        assert world.corrected == [PID, PID]
        world.sightings.close()

    asyncio.run(run())


@pytest.mark.parametrize("rest", [0, 10_000])
def test_who_may_have_stopped_others_has_that_undone_and_not_all_the_time(
    monkeypatch: pytest.MonkeyPatch, rest: int
) -> None:
    monkeypatch.setattr(corrections, "ASSERT_REST", rest)  # times as long as it took

    async def run() -> None:
        world = World()
        stop = msgspec.structs.replace(world.event(Kind.OTHER), what=What.CONTROLLED, parent=WATCH_OTHERS, client=99)
        world.sightings.hear([stop] * 100)
        while not world.asserted:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert world.asserted == [PID]  # what it did to itself stays
        world.sightings.hear([stop, msgspec.structs.replace(stop, pid=PID + 1)])
        await asyncio.sleep(0.1)
        assert world.asserted == ([PID, None] if rest == 0 else [PID])  # of two nobody is passed over
        world.sightings.close()

    asyncio.run(run())


def test_others_on_files_of_their_own_or_by_other_controls_have_nothing_undone() -> None:
    async def run() -> None:
        world = World()
        stop = msgspec.structs.replace(world.event(Kind.OTHER), what=What.CONTROLLED, parent=WATCH_OTHERS, client=99)
        world.sightings.hear([msgspec.structs.replace(stop, fd=FD + 1), msgspec.structs.replace(stop, parent=1)])
        await asyncio.sleep(0.02)
        assert world.asserted == []
        world.sightings.close()

    asyncio.run(run())


def test_who_enables_itself_by_a_client_that_nobody_manages_is_looked_at() -> None:
    async def run() -> None:
        world = World()
        enabled = msgspec.structs.replace(world.event(Kind.OTHER), what=What.CONTROLLED, parent=WATCH_OTHERS, client=99)
        world.sightings.hear([enabled])
        assert world.corrected == []  # nobody manages it
        world.managed[PID] = object()
        world.sightings.hear([enabled])
        assert world.corrected == [PID]
        world.sightings.close()

    asyncio.run(run())


def test_of_many_who_change_their_slices_each_has_a_turn_and_others_are_served_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(corrections, "CORRECT_S", 0.002)
    monkeypatch.setattr(corrections, "CORRECT_EVERY_S", 0)

    async def run() -> None:
        world = World()
        world.takes = lambda: time.sleep(0.001)
        pids = range(PID, PID + 20)
        world.managed |= dict.fromkeys(pids, object())
        flood = [
            msgspec.structs.replace(
                world.event(Kind.OTHER), what=What.CONTROLLED, parent=WATCH_OTHERS, client=99, pid=pid
            )
            for pid in pids
        ]
        while len(world.corrected) < 60:
            before = len(world.corrected)
            world.sightings.hear(flood)
            assert len(world.corrected) <= before + 2
            await asyncio.sleep(0)
            assert len(world.corrected) <= before + 4
        assert all(19 <= b - a <= 21 for a, b in occurrences(world.corrected))
        world.sightings.close()

    asyncio.run(run())


def test_of_a_flood_each_kind_is_looked_at_once() -> None:
    """Whose clients are takes 30 µs among fifty processes, and 40,000 such events of a user may come in a second. In
    each it may name another client: nobody asks whether there is such a one.
    """

    async def run() -> None:
        world = World()
        asked: list[None] = []
        world.processes.owners_of_clients = lambda: asked.append(None) or {}
        stop = msgspec.structs.replace(world.event(Kind.OTHER), what=What.CONTROLLED, parent=WATCH_OTHERS)
        world.sightings.hear([msgspec.structs.replace(stop, client=client) for client in range(64)])
        assert len(asked) == 1
        world.sightings.hear([stop, msgspec.structs.replace(world.event(Kind.GROUP), what=What.FREED)])
        assert len(asked) == 2
        world.sightings.close()

    asyncio.run(run())


def occurrences(pids: Sequence[int]) -> list[tuple[int, int]]:
    """Where each stands in the list, and where it stands next."""
    last: dict[int, int] = {}
    pairs = []
    for place, pid in enumerate(pids):
        if pid in last:
            pairs.append((last[pid], place))
        last[pid] = place
    return pairs


def test_a_round_that_failed_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one for which there was no memory."""

    async def run() -> None:
        world = World()
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        stop = msgspec.structs.replace(world.event(Kind.OTHER), what=What.CONTROLLED, parent=WATCH_OTHERS, client=99)
        fails = True

        def takes() -> None:
            if fails:
                raise MemoryError

        world.takes_all = takes
        world.sightings.hear([stop])
        await asyncio.sleep(0.01)
        fails = False
        world.sightings.hear([stop])
        await asyncio.sleep(0.01)
        assert world.asserted == [PID, PID]
        world.sightings.close()

    asyncio.run(run())


def test_a_user_with_many_processes_takes_nobody_elses_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do the numbers that a user has for containers; root's count by cgroup, as in the kernel's maps."""
    monkeypatch.setattr(sightings, "MOST_OF_AN_OWNER", 2)
    monkeypatch.setattr(sightings, "user_behind", lambda uid: 1000 if uid >= 100_000 else uid)

    async def test() -> None:
        world = World()
        whose = [(1000, 5), (1000, 6), (100_000, 5), (1000, 5), (1001, 5), (0, 8), (0, 8), (0, 8), (0, 9), (100_001, 7)]
        for pid, (uid, cgroup) in enumerate(whose, 10):
            made = msgspec.structs.replace(world.event(Kind.CLIENT), pid=pid, uid=uid, cgroup=cgroup)
            world.sightings.hear([made])
        assert list(world.sightings._known) == [10, 11, 14, 15, 16, 18]
        ended = msgspec.structs.replace(world.event(Kind.CLIENT), what=What.ENDED, pid=10, uid=1000)
        made = msgspec.structs.replace(world.event(Kind.CLIENT), pid=20, uid=100_000)
        world.sightings.hear([ended, made, msgspec.structs.replace(made, pid=21)])
        assert list(world.sightings._known) == [11, 14, 15, 16, 18, 20]
        world.sightings.gap()
        world.sightings.hear([made, msgspec.structs.replace(made, pid=21), msgspec.structs.replace(made, pid=22)])
        assert list(world.sightings._known) == [20, 21]
        world.sightings.hear([msgspec.structs.replace(ended, pid=pid) for pid in (20, 21)])
        assert not world.sightings._owners
        world.sightings.close()

    asyncio.run(test())
