"""Looking for new processes and contexts, below every root and by the rules."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec
import structlog

from runlist.daemon.placement.placement import Placement
from runlist.daemon.tasks.managed import Root
from runlist.daemon.tree.adoption import Adoption
from runlist.daemon.tree.checks import Checks
from runlist.daemon.tree.look_schedule import QUIET_S, SETTLE_S, LookSchedule
from runlist.daemon.tree.processes import Processes
from runlist.errors import NotAdmitted, NoTargetError, RunlistError
from runlist.proc import patience
from runlist.proc.exhaustion import passes
from runlist.proc.owners import may_answer_for
from runlist.proc.process import descendants, descendants_then, descriptor_count, owner_of, start_of

_log = structlog.get_logger()

TRIES = 3
"""A process at which a look failed is looked at so many times again, whatever its open files do."""

BELIEVED_S, MOST_NOBODYS = 1.0, 4096
"""How long, and of how many, it is believed that a process which sends something is of no tree: to see that takes 1 ms.
"""

SOUGHT_S, LONGEST_SOUGHT_S = 1.0, 64.0
"""A process of a tree that has work, and is not managed, is looked at again so long after the first look, and each time
after twice as long, up to this.
"""

LISTED_EVERY_S = 10.0
"""How often the driver's list tells of such: 14 ms beside two H200."""

LEFT_ALONE = 512
"""Of so many processes that users had put back one looks who has ended."""

PIECE_S = 0.002
"""So long the processes of a tree are gone through in a row."""

ASKED_AGAIN_S = 10.0
"""The rules are asked so often about a process of which there is no telling what it runs."""

PATIENCE_S = 0.1
"""A scan waits so long for the looks at the trees; those that take longer go on beside the next scans."""


class _Sought(msgspec.Struct):
    """A process that is looked at again, and when."""

    rest_s: float = SOUGHT_S
    at: float = 0.0


class Search:
    """Looks at processes whose open files changed a moment ago, and adopts what it finds. `wake` has the next
    scan come soon.
    """

    def __init__(
        self,
        processes: Processes,
        adoption: Adoption,
        checks: Checks,
        placement: Placement,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._processes = processes
        self._adoption = adoption
        self._checks = checks
        self._placement = placement
        self._wake = wake
        processes.on_end = self._one_ended
        checks.changed_users.on_change = self.look_anew
        self._schedule = LookSchedule()
        self._looking: dict[int, asyncio.Task[None]] = {}  # by root: none waits for another's tree
        self._passed_over: set[int] = set()  # processes that the rules were asked about once
        self._silent: dict[int, float] = {}  # who did not tell its words then; when the rules are asked again
        self._nobodys: dict[int, float] = {}  # who sent something and is of no tree; until when that is believed
        self._named = 0  # roots, by then
        self._left_alone: set[tuple[int, int | None]] = set()  # with their start times: ids are used again
        self._most_left_alone = LEFT_ALONE
        self._listed: set[int] = set()  # on the GPUs when the rules were last asked about all
        self._failed: Counter[int] = Counter()  # how often looks at a process failed
        self._trees: dict[int, list[int]] = {}  # as they were last seen, by the process at their top
        self._on_gpus: AbstractSet[int] = set()  # by the driver's list, those of a tree
        self._list_at = 0.0
        self._sought: dict[int, _Sought] = {}
        self._ended = False  # one that is managed has, since the last scan
        self.missed = False
        """Whether the last scan found that a process had ended before anybody looked at it."""
        self.took_s = 0.0
        """How long the thread took that looked around for the last scan."""

    async def everything_of(self, root: Root) -> None:
        """Adopt what a root and its descendants have, however old it is."""
        for pid in await _tree_of(root.pid):
            try:
                await self._adoption.adopt(root, pid, new_only=False)
            except NoTargetError:
                if pid == root.pid:
                    raise  # a descendant may end meanwhile
            if pid in self._processes.managed:
                self._schedule.looked_at(pid)

    async def everything_below(self, root: Root, top: int) -> list[int]:
        """Adopt what a process of a root's tree and its descendants have; returns those of them that are managed."""
        found = []
        for pid in await _tree_of(top):
            if pid in root.excluded:
                continue
            with contextlib.suppress(NoTargetError):  # it may end meanwhile
                await self._adoption.adopt(root, pid, new_only=False)
            managed = self._processes.managed.get(pid)
            if managed is not None and managed.root is root:
                self._schedule.looked_at(pid)
                found.append(pid)
        return found

    @property
    def settled(self) -> bool:
        """Whether nothing is to be looked at again soon. With rules any process on a GPU may be, once it is listed."""
        lent_for = self._adoption.lending.quiet_for
        return self._schedule.settled and lent_for > SETTLE_S and not self._looking and not self._placement.rules

    async def has_newcomers(self) -> bool:
        """Whether there are processes on the GPUs that the rules were not asked about."""
        return bool(await asyncio.to_thread(self._placement.gpu_pids) - self._listed)

    async def scan(self, *, walk: bool = True) -> None:
        """Look for new contexts under every root, and with `walk` for new processes, too. A process with a context has
        opened the GPU, so nobody is missed where nobody opened it since the last walk.
        """
        if self._placement.rules:
            await self._name_by_rules()
        roots = {pid: root for pid, root in self._processes.roots.items() if pid not in self._looking}
        tops = {pid: self._processes.tops(root) for pid, root in roots.items()}
        wanted = [pid for pids in tops.values() for pid in pids]
        expected = self._processes.next_expected()
        at_once, self._ended = self.missed or self._ended, False
        walk |= not self._trees.keys() >= set(wanted)
        seen = await asyncio.to_thread(
            _look_around, wanted, None if walk else self._trees, self._schedule.known, list(self._processes.left)
        )
        self._trees, self.took_s = seen.trees, seen.took_s
        for root_pid, pids in tops.items():
            root = roots[root_pid]
            if self._processes.roots.get(root_pid) is not root:
                continue
            tree = dict.fromkeys(pid for top in pids for pid in seen.trees[top])
            if root.ended:
                self._processes.inherit(root, tree)
            due = await self._due(root, tree, seen.counts, expected, at_once=at_once)
            if due and self._processes.roots.get(root_pid) is root:
                self._looking[root_pid] = asyncio.create_task(self._look_at(root_pid, root, due, sure=walk))
        if self._looking:
            await asyncio.wait(self._looking.values(), timeout=PATIENCE_S)
        self.missed = self._schedule.forget_gone(seen.counts)
        for pid in seen.gone:
            self._processes.left.pop(pid, None)
            self._failed.pop(pid, None)

    async def seek(self, *, listed: bool) -> None:
        """Have processes looked at again that have work and are not managed: who lent a file, and where nobody else
        tells, who is in a tree and on a GPU as the driver's list is `listed`. The number of their open files may stay
        as it was, and looks came before there was a channel group. Call it every second.
        """
        now = time.monotonic()
        if listed and self._processes.roots and now >= self._list_at:
            self._on_gpus = {pid for tree in self._trees.values() for pid in tree} - self._processes.managed.keys()
            if self._on_gpus:  # they may be
                self._list_at = now + LISTED_EVERY_S
                self._on_gpus &= await asyncio.to_thread(self._placement.gpu_pids)
        wanted = (self._on_gpus | self._adoption.lending.lenders) - self._processes.managed.keys()
        self._sought = {pid: self._sought.get(pid) or _Sought() for pid in wanted}
        for pid, sought in self._sought.items():
            if now >= sought.at:
                sought.at, sought.rest_s = now + sought.rest_s, min(2 * sought.rest_s, LONGEST_SOUGHT_S)
                self.look_soon(pid)

    async def _due(
        self, root: Root, tree: Collection[int], counts: Mapping[int, int], expected: Container[int], *, at_once: bool
    ) -> list[int]:
        """Which processes of a tree to look at. There may be thousands: others come between. With `at_once` they need
        not come to rest: they may have what one had that has ended, and end themselves before that.
        """
        due, began = [], time.monotonic()
        for pid in tree:
            if pid in root.excluded or self._processes.is_ours(pid):
                continue
            if self._worth_a_look(pid, counts.get(pid, -1), at_once=at_once) or pid in expected:
                due.append(pid)
            if time.monotonic() - began >= PIECE_S:
                await asyncio.sleep(0)
                began = time.monotonic()
        return due

    async def _look_at(self, number: int, root: Root, pids: list[int], *, sure: bool) -> None:
        """Look at processes of one tree, in their order; where it is not sure that they are of it, one asks."""
        try:
            for pid in pids:
                if self._processes.roots.get(number) is root and (sure or self._is_below(pid, root)):
                    await self._look(root, pid)
                else:
                    await asyncio.sleep(0)
        finally:
            del self._looking[number]

    async def _look(self, root: Root, pid: int) -> None:
        try:
            await self._adoption.adopt(root, pid, new_only=True)
        except (RunlistError, OSError) as error:
            if passes(error):  # the next scan looks again
                self._schedule.forget(pid)
                return
            self._leave(pid, error)
            if isinstance(error, NotAdmitted) and root.tell is not None:
                root.tell(str(error))
                root.tell = None  # one tells of them all: `ps` names the others
            if self._failed[pid] < TRIES:  # much fails once, as where something goes while it is looked at
                self._failed[pid] += 1
                self._schedule.forget(pid)
                self._wake()
        else:
            self._checks.correct(pid)
            self._processes.left.pop(pid, None)
            self._failed.pop(pid, None)

    async def look_at_once(self, root: Root, pids: Iterable[int]) -> None:
        """Look at processes of a tree that may hand on what they have, and end, before they come to rest."""
        for pid in pids:
            if pid not in root.excluded and not self._processes.is_ours(pid):
                await self._look(root, pid)

    def look_again(self, root: Root) -> None:
        """Have the next scan look at all processes of a tree, whatever they looked like before."""
        self._forget_looks(root)
        self._wake()

    def _forget_looks(self, root: Root) -> None:
        for top, tree in descendants_then(self._processes.tops(root)).items():
            for pid in (top, *tree):
                self._schedule.forget(pid)

    def look_soon(self, pid: int) -> None:
        """Have the next scan look at a process of a tree, whatever it looked like before."""
        self._schedule.forget(pid)
        self._wake()

    def look_anew(self, pid: int) -> None:
        """Look at a process again, however it looked before: it lent a file, or may be a rule's now."""
        self.look_soon(pid)
        self._passed_over.discard(pid)
        self._nobodys.pop(pid, None)
        self._left_alone.discard((pid, start_of(pid)))

    def root_for(self, pid: int, uid: int) -> Root | None:
        """The root that may take what a process of user `uid` sends: one of whoever answers for it, or one that a
        rule makes now.
        """
        if self._is_nobodys(pid):
            return None
        root = self.root_of_new(pid)
        if root is None:
            self._nobodys[pid] = time.monotonic() + BELIEVED_S
        return root if root is not None and may_answer_for(root.uid, uid) else None

    def _is_nobodys(self, pid: int) -> bool:
        """Whether a process was nobody's a moment ago, and none was named since: it may send on and on."""
        if self._named != self._processes.named_so_far or len(self._nobodys) >= MOST_NOBODYS:
            self._named = self._processes.named_so_far
            self._nobodys.clear()
        return time.monotonic() < self._nobodys.get(pid, 0.0)

    def root_of_new(self, pid: int) -> Root | None:
        """The root of a process that has just come to a GPU, perhaps one that a rule makes now."""
        if self._placement.rules and self._processes.root_of(pid) is None:
            self._name_by_rule(pid)
        root = self._processes.root_of(pid)
        return root if root is not None and pid not in root.excluded else None

    def rules_changed(self, concerns: Callable[[int], bool]) -> None:
        """Ask the rules again about the processes that nobody named and for which this is true."""
        self._passed_over = {pid for pid in self._passed_over if not concerns(pid)}
        self._silent.clear()
        self._nobodys.clear()
        self._wake()

    def leave_alone(self, pids: Iterable[int]) -> None:
        """Whatever the rules say: a user had these put back."""
        self._left_alone |= {(pid, start_of(pid)) for pid in pids}
        if len(self._left_alone) >= self._most_left_alone:  # who has ended is left alone for ever
            self._left_alone = {(pid, start) for pid, start in self._left_alone if start and start_of(pid) == start}
            self._most_left_alone = max(LEFT_ALONE, 2 * len(self._left_alone))

    def is_left_alone(self, pid: int) -> bool:
        """Whether a user had it put back, whatever the rules say."""
        return bool(self._left_alone) and (pid, start_of(pid)) in self._left_alone

    async def _name_by_rules(self) -> None:
        """Make roots of the GPU processes that nobody named and that a rule matches."""
        listed = await asyncio.to_thread(self._placement.gpu_pids)  # 14 ms beside two H200
        there = {pid for pid in listed if not self._processes.is_ours(pid)}
        self._passed_over &= there
        self._listed = listed
        if self._left_alone:
            self._left_alone &= {(pid, start_of(pid)) for pid in there}
        trees = await _trees_of(tops := self._all_tops())
        if tops != (now := self._all_tops()):  # somebody named more meanwhile
            trees = descendants_then(now)
        named = {pid for tree in trees.values() for pid in tree}
        self._silent = {pid: at for pid, at in self._silent.items() if pid in there}
        later = {pid for pid, at in self._silent.items() if at > time.monotonic()}
        for pid in there - named - self._processes.managed.keys() - self._passed_over - later:
            self._name_by_rule(pid)
            if patience.is_silent(pid):
                self._silent[pid] = time.monotonic() + ASKED_AGAIN_S
            else:
                self._passed_over.add(pid)

    def _all_tops(self) -> list[int]:
        return [pid for root in self._processes.roots.values() for pid in self._processes.tops(root)]

    def _name_by_rule(self, pid: int) -> None:
        try:
            if not self.is_left_alone(pid) and self._placement.settings_of(pid, {}).rule:
                root = self._processes.add_root(pid, {}, by_rule=True)
                root.old = True
                if pid in self._placement.foretold:
                    self._schedule.forget(pid)  # the kernel told of it, and tells of others
                else:
                    self._forget_looks(root)  # it may have been managed before
        except (RunlistError, OSError) as error:
            self._leave(pid, error)

    def _leave(self, pid: int, error: Exception) -> None:
        with contextlib.suppress(OSError):  # no descriptor is left to see by
            if owner_of(pid) is None:  # it ended while it was looked at
                return
        if self._processes.left.get(pid) != str(error):
            self._processes.left[pid] = str(error)
            _log.warning("a process is left to the driver's own scheduling", pid=pid, reason=str(error))

    def _is_below(self, pid: int, root: Root) -> bool:
        """Whether a process id still means a process of a tree: ids are used again."""
        return root in self._processes.chain(self._processes.root_of(pid))

    def _one_ended(self) -> None:
        self._ended = True
        self._wake()

    def _worth_a_look(self, pid: int, count: int, *, at_once: bool) -> bool:
        """Whether something may be new in a process. Where its descriptors cannot be listed, its lent files tell."""
        return self._schedule.due(pid, count, at_once=at_once) or (
            count < 0 and self._adoption.lending.lent_for(pid) >= QUIET_S
        )


class _Seen(msgspec.Struct, frozen=True):
    """What there is: the trees by the process at their top, how many descriptors processes have, and who is gone."""

    trees: dict[int, list[int]]
    counts: dict[int, int]
    gone: list[int]
    took_s: float


def _look_around(
    tops: Sequence[int], trees: dict[int, list[int]] | None, known: Iterable[int], left: Iterable[int]
) -> _Seen:
    """For a thread: a user may have thousands of processes. Trees that are not given are looked for."""
    began = time.monotonic()
    found = descendants(tops) if trees is None else trees
    pids = {*known, *(pid for top in tops for pid in found[top])}
    counts = {pid: descriptor_count(pid) for pid in pids}
    gone = [pid for pid in left if owner_of(pid) is None]
    return _Seen(found, counts, gone, time.monotonic() - began)


async def _tree_of(pid: int) -> list[int]:
    return (await _trees_of([pid]))[pid]


async def _trees_of(pids: Sequence[int]) -> dict[int, list[int]]:
    """A walk through /proc takes milliseconds, for which no request must wait."""
    return await asyncio.to_thread(descendants, pids)
