"""Processes that the kernel saw at work: they are looked at right then, and not when somebody looks next.

An event is a hint. What is managed is what the driver itself says of the objects that were seen, on a copy of the file
on which they were seen; a program with a file of its own that takes the same requests gets looked at, and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec
import structlog

from runlist.daemon.gpu.gpus import Gpus
from runlist.daemon.kernel.link import KernelLink
from runlist.daemon.kernel.policy import PolicyMap
from runlist.daemon.memory.census import MemoryCensus
from runlist.daemon.placement.placement import Placement
from runlist.daemon.placement.rule import Match
from runlist.daemon.tasks.managed import Count, SuspendedBy
from runlist.daemon.tree.adoption import Adoption
from runlist.daemon.tree.checks import Checks
from runlist.daemon.tree.corrections import Corrections
from runlist.daemon.tree.processes import Processes
from runlist.daemon.tree.search import Search
from runlist.errors import RunlistError
from runlist.model import LATENCY_CRITICAL
from runlist.planes.interface import Finder, Seen
from runlist.planes.kernel.events import Event
from runlist.proc import process
from runlist.proc.aside import ask
from runlist.proc.owners import Owner, user_behind
from runlist.protocol.kernel_autogen import MOST_GPUS, WATCH_OTHERS, Kind, Refusal, What

_log = structlog.get_logger()

QUIET_S = 0.001
"""A process that made nothing for this long is looked at; what comes later is added."""
LONGEST_S = 0.02
"""One that goes on making objects is looked at after this long. One that nobody manages yet is looked at as soon as it
has a compute engine: a context takes long to make while others have the GPU, and they give way once it is managed.
"""
BEGIN_S = 5.0
"""A search waits no longer for those that an earlier daemon knew."""
MOST_OBJECTS = 16_384
"""Remembered of a process; beyond, looks find the rest."""
MOST_OF_AN_OWNER, MOST_PROCESSES = 2048, 1 << 16
"""Processes of a user, or of root in a cgroup, as in the kernel's maps; and of all together."""
LOOKS_A_SECOND = 20
"""At a process on hints alone. A program that makes and frees contexts on and on is left to the ordinary looks."""

_REFUSED: dict[int, str] = {
    Refusal.SLICES: "changed how it is scheduled itself",
    Refusal.GROUPS: "made more channel groups",
    Refusal.GPU: "used a GPU that it was not given",
}
NOBODY = 0
"""No process has this id."""
_WORTH_A_LOOK = (Kind.CHANNEL, Kind.COMPUTE, Kind.COPY)
_COUNTED = {Count.CONTROLS_ASKED: "controls", Count.REQUESTS_REFUSED: "refusals"}
"""In which of the kernel's maps."""
_TAKES_GROUPS = (Kind.CLIENT, Kind.DEVICE, Kind.GROUP)


_Owner = tuple[int, int]
"""A user, and for root the cgroup."""


class _Process(msgspec.Struct):
    """What was seen of a process: its objects by client, and the descriptor of each client."""

    owner: _Owner
    objects: dict[int, dict[int, Kind]] = {}
    fds: dict[int, int] = {}
    last: float = 0.0
    first: float = 0.0  # when the kernel answered the first that no look has seen yet
    ready: asyncio.Event = msgspec.field(default_factory=asyncio.Event)  # it need not come to rest
    look: asyncio.Task[None] | None = None
    dirty: set[int] = set()  # clients with something new
    second: float = float("-inf")
    looks: int = 0
    match: Match | None = None  # what the rules give it, where the kernel told which entry of the policy map names it
    refused: bool = False  # something, and that was said
    forbidden: str = ""  # what it did that the policy map forbids, in words
    critical: bool | None = None  # whether it is to be latency-critical; None until it has a device
    comes_for: Owner | None = None  # who answers for it then
    comes: set[int] = set()  # to which GPUs it came, by the numbers that it gave: it has made a channel group there
    room_ms: dict[str, float] = {}  # how soon others were off for it, by GPU, until it is managed there

    def seen(self, clients: set[int]) -> list[Seen]:
        return [
            Seen(self.fds[client], client, tuple(self.objects[client])) for client in clients if client in self.objects
        ]

    def may_look(self) -> bool:
        now = time.monotonic()
        if now - self.second >= 1:
            self.second, self.looks = now, 0
        self.looks += 1
        return self.looks <= LOOKS_A_SECOND


def _owner(event: Event) -> _Owner:
    return user_behind(event.uid), event.cgroup if event.uid == 0 else 0


class Sightings:
    """Takes events, and acts by the entries of the policy map that they name."""

    def __init__(
        self,
        finder: Finder,
        processes: Processes,
        adoption: Adoption,
        checks: Checks,
        search: Search,
        gpus: Gpus,
        placement: Placement,
        kernel: KernelLink,
        policy: PolicyMap,
        census: MemoryCensus,
    ) -> None:
        self._gpus = gpus
        self._placement = placement
        self._kernel = kernel
        self._policy = policy
        self._census = census
        self._finder = finder
        self._processes = processes
        self._adoption = adoption
        self._checks = checks
        self._search = search
        self._known: dict[int, _Process] = {}
        self._owners: Counter[_Owner] = Counter()  # of these
        self._counted: set[int] = set()  # processes for which what the kernel counted was last asked
        self._beginning: asyncio.Task[None] | None = None
        self._owner_of_client: dict[int, int] | None = None
        self._corrections = Corrections(checks)

    def close(self) -> None:
        """Look no more."""
        for known in self._known.values():
            if known.look is not None:
                known.look.cancel()
        self._known.clear()
        if self._beginning is not None:
            self._beginning.cancel()
        self._corrections.close()

    def gap(self) -> None:
        """Something was not told: everything is looked at, and what was seen is not relied on."""
        if self._beginning is not None and not self._beginning.done():  # what an earlier daemon knew is looked at first
            self._beginning.add_done_callback(lambda done: None if done.cancelled() else self.gap())
            return
        for pid in [pid for pid, known in self._known.items() if known.look is None]:
            self._forget(pid)
        for root in list(self._processes.roots.values()):
            self._search.look_again(root)
        self._search.rules_changed(lambda _: True)
        self._kernel.forget()  # nobody may have been told of the end of some
        self._corrections.set_all_right(but=NOBODY)  # nor of what was done to others

    def hear(self, events: Sequence[Event]) -> None:
        """Take events in their order. All of them have happened: a control counts once, however often it was sent."""
        controls: set[tuple[int, int, int, int]] = set()
        self._owner_of_client = None
        for event in events:
            if self._processes.is_ours(event.pid):
                continue
            match event.what:
                case What.MADE | What.DUPLICATED:
                    self._made(event)
                case What.FREED:
                    self._freed(event)
                case What.CONTROLLED:
                    control = event.pid, event.fd, event.client, event.parent
                    if control not in controls:
                        controls.add(control)
                        self._controlled(event)
                case What.CLOSED | What.EXECUTED:
                    self._closed(event)
                case What.ENDED:
                    self._ended(event)
                case What.REFUSED | What.FORBIDDEN:
                    self._refused(event)

    def begin(self, events: Sequence[Event]) -> None:
        """Take what an earlier daemon was told of processes that live: they are looked at before all others."""
        self.hear(events)
        looks = [known.look for known in self._known.values() if known.look is not None]

        async def say() -> None:
            await asyncio.wait(looks)
            managed = sum(pid in self._processes.managed for pid in self._known)
            _log.info("rebuilt from the kernel's maps", processes=managed, walks=process.walks())

        if looks:
            self._beginning = asyncio.get_running_loop().create_task(say())

    async def begun(self) -> None:
        """Return when these were looked at: till then there is nothing to search for."""
        if self._beginning is not None:
            await asyncio.wait([self._beginning], timeout=BEGIN_S)

    def count(self) -> None:
        """Have the tasks know what the kernel counted of their processes, if there is anything new about that."""
        managed = set(self._processes.managed)
        if not self._kernel.has_counted() and managed == self._counted:
            return
        self._counted = managed
        for which, name in _COUNTED.items():
            counted = self._kernel.counted(name)
            for pid in counted.keys() & self._processes.managed.keys():
                for task in self._processes.managed[pid].tasks.values():
                    more = max(0, counted[pid] - task.counted[which])
                    task.counts[which] += more
                    task.counted[which] += more

    def _refused(self, event: Event) -> None:
        """It was refused; or it is done, and whoever did it is suspended."""
        entry = self._policy.entry(event.entry)
        if entry is None:
            return
        why = f"it {_REFUSED.get(event.parent, 'did something')}, which {entry.rule.where} forbids"
        known = self._known.get(event.pid)
        if known is None or not known.refused:
            refused = event.what is What.REFUSED
            _log.info("a process was refused something" if refused else "a process did what it may not",
                      pid=event.pid, why=why)  # fmt: skip
        if event.what is What.FORBIDDEN and self._is_file(event):
            if known is not None and event.pid not in self._processes.managed:
                known.forbidden = f"suspended: {why}"
            self._suspend(event.pid, f"suspended: {why}")
        if known is not None:
            known.refused = True

    def _is_file(self, event: Event) -> bool:
        return ask(event.pid, partial(self._finder.is_file, event.pid, event.fd), False)

    def _suspend(self, pid: int, why: str) -> None:
        managed = self._processes.managed.get(pid)
        tasks = [] if managed is None else list(managed.tasks.values())
        for task in tasks:
            task.suspend_for(SuspendedBy.POLICY, why)
        if tasks:
            self._gpus.run({task.task.key.gpu for task in tasks}, set())

    def _made(self, event: Event) -> None:
        known = self._known.get(event.pid)
        if known is None:
            if not self._is_file(event):
                return
            owner = _owner(event)
            if self._owners[owner] >= MOST_OF_AN_OWNER or len(self._known) >= MOST_PROCESSES:
                self._search.look_anew(event.pid)
                return
            known = self._known[event.pid] = _Process(owner)
            self._owners[owner] += 1
        objects = known.objects.setdefault(event.client, {})
        if len(objects) < MOST_OBJECTS:
            objects[event.object] = event.kind
        known.fds.setdefault(event.client, event.fd)
        known.last = time.monotonic()
        if event.entry and (entry := self._policy.entry(event.entry)) is not None:
            known.match = entry.match()
        if event.kind is Kind.DEVICE and known.critical is None:
            # There is time now: its first group is tens of ms away. Right behind that come requests of its own that
            # take the driver 20 ms.
            known.critical = self._is_to_be_critical(event.pid, known)
            self._census.gpus()
        if event.kind is Kind.GROUP and event.gpu not in known.comes and len(known.comes) < MOST_GPUS:
            known.comes.add(event.gpu)
            self._make_room(event, known)
        if event.kind in _WORTH_A_LOOK:
            known.first = known.first if known.dirty else event.time
            known.dirty.add(event.client)
            if event.kind is Kind.COMPUTE and event.pid not in self._processes.managed:
                known.ready.set()
            self._begin(event.pid, known)

    def _make_room(self, event: Event, known: _Process) -> None:
        """Have others off for one that comes to a GPU, if it is to be latency-critical there. Where there are several,
        its own word says which, and a wrong one has others off for a moment, as rarely as a right one.
        """
        every = self._census.gpus()
        uuid = every[0] if len(every) == 1 else self._gpus.numbered(event.gpu - 1)
        managed = self._processes.managed.get(event.pid)
        gpu = next((each for each in self._gpus.all() if each.gpu == uuid and each.gives_room), None)
        if gpu is None or (managed is not None and gpu.gpu in managed.tasks):
            return
        critical = known.critical or self._is_to_be_critical(event.pid, known)
        owner = known.comes_for
        if critical and owner is not None and gpu.make_room((owner.uid, owner.container)):
            known.room_ms[gpu.gpu] = (time.monotonic() - event.time) * 1e3

    def _is_to_be_critical(self, pid: int, known: _Process) -> bool:
        """By what its tree and the rules say; bad settings are said where it is managed. Of one that nobody named only
        the rules are asked, which takes a look at it where the kernel did not tell their answer: no look is taken where
        there is nobody to make room, or no rule that would have anybody do so.
        """
        root = self._processes.root_of(pid)
        if root is not None and pid in root.excluded:
            return False
        if root is None and (
            (known.critical is False and known.match is None)  # they were asked
            or not any(each.gives_room for each in self._gpus.all())
            or not self._placement.rules.give_critical
            or self._search.is_left_alone(pid)
        ):
            return False
        known.comes_for = Owner.of(pid, known.owner[0] if root is None else root.uid)
        with contextlib.suppress(RunlistError):
            return self._placement.class_of_new(pid, root, known.match) in LATENCY_CRITICAL
        return False

    def _freed(self, event: Event) -> None:
        if event.kind in _TAKES_GROUPS and (owner := self._owner_of(event.client)) is not None:
            self._corrections.look_at(owner)
        known = self._known.get(event.pid)
        if known is None:
            return
        if event.kind is Kind.CLIENT:
            known.objects.pop(event.client, None)
            known.fds.pop(event.client, None)
        elif event.client in known.objects:
            known.objects[event.client].pop(event.object, None)

    def _controlled(self, event: Event) -> None:
        """Somebody who has the file of a managed process has changed its slice, or enabled it: that process, or a child
        of it. Or the process has, by a client that nobody manages.
        """
        may_be_others = bool(event.parent & WATCH_OTHERS)
        owners = {self._owner_of(event.client), event.pid if may_be_others else None}
        changed = [pid for pid in owners if pid in self._processes.managed and not self._corrections.is_due(pid)]
        meddles = may_be_others and self._corrections.is_new(event.pid)
        if (changed or meddles) and self._is_file(event):
            for pid in changed:
                self._corrections.look_at(pid)
            if meddles:
                self._corrections.set_all_right(but=event.pid)

    def _owner_of(self, client: int) -> int | None:
        """The process for which a client is managed: asked for once for all events that came together."""
        if self._owner_of_client is None:
            self._owner_of_client = self._processes.owners_of_clients()
        return self._owner_of_client.get(client)

    def _closed(self, event: Event) -> None:
        if event.pid in self._processes.managed:
            asyncio.get_running_loop().call_later(QUIET_S, self._checks.check_files, event.pid)

    def _ended(self, event: Event) -> None:
        known = self._forget(event.pid)
        if known is not None and known.look is not None:
            known.look.cancel()
        self._corrections.forget(event.pid)
        self._kernel.forget(event.pid)

    def _forget(self, pid: int) -> _Process | None:
        known = self._known.pop(pid, None)
        if known is not None:
            self._owners[known.owner] -= 1
            if not self._owners[known.owner]:
                del self._owners[known.owner]
        return known

    # -- looking -----------------------------------------------------------------------------------

    def _begin(self, pid: int, known: _Process) -> None:
        if known.look is None:
            known.look = asyncio.get_running_loop().create_task(self._look(pid, known))

    async def _look(self, pid: int, known: _Process) -> None:
        """Look at a process until it makes no more."""
        try:
            if known.match is not None:
                self._placement.foretold[pid] = known.match
            root = self._search.root_of_new(pid)
            while root is not None and known.dirty:
                if not known.may_look():
                    self._search.look_anew(pid)
                    return
                await self._quiet(known)
                clients, known.dirty = known.dirty, set()
                known.ready.clear()
                await self._adoption.adopt_seen(root, pid, known.seen(clients), since=known.first)
                self._tell_of_room(pid, known)
                if known.forbidden:
                    self._suspend(pid, known.forbidden)
                    known.forbidden = ""
        except (RunlistError, OSError) as error:
            _log.info("a process that the kernel saw is left to the next look", pid=pid, reason=str(error))
            self._search.look_anew(pid)
        finally:
            self._placement.foretold.pop(pid, None)
            known.look = None

    def _tell_of_room(self, pid: int, known: _Process) -> None:
        managed = self._processes.managed.get(pid)
        for gpu in list(known.room_ms):
            if managed is not None and (task := managed.tasks.get(gpu)) is not None:
                task.room_ms = known.room_ms.pop(gpu)

    async def _quiet(self, known: _Process) -> None:
        ends = time.monotonic() + LONGEST_S
        while (rest := min(known.last + QUIET_S, ends) - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await known.ready.wait()
                return
