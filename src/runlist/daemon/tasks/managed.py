"""What the daemon knows of a process: its borrowed files, and its work on each GPU."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

import msgspec

from runlist.daemon.memory.quota import Quota
from runlist.daemon.tasks.in_turn import next_of
from runlist.daemon.tasks.lending import Lending
from runlist.errors import ContextGone, RunlistError
from runlist.model import DEFAULT_SHARE, Share, Task, TaskClass, TaskKey
from runlist.planes.interface import Borrower, Context, Group, Handle
from runlist.planes.process.region import Activity
from runlist.policies.parts.tail import Tail
from runlist.proc import borrow
from runlist.proc.owners import Owner, may_answer_for
from runlist.proc.process import ProcessIds, Program, ancestors, owner_of, start_of


class Root(msgspec.Struct):
    """A process that a user, or a rule, named; its descendants are managed as it is.

    `settings` are those asked for it, by key; they win over the rules. `borrowers` can copy descriptors out of its
    processes, and are asked in this order. `quota` has the memory limits of all its processes together. `away` are the
    tasks of its processes that have no context now, `heirs` the start times, by process id, of those that were seen
    below it and live on after its end.
    """

    pid: int
    pidfd: int
    uid: int
    settings: dict[str, str]
    borrowers: tuple[Borrower, ...] = (borrow.OwnRight(),)
    quota: Quota = msgspec.field(default_factory=Quota)
    tell: Callable[[str], None] | None = None  # says a line to its user, while there is anybody who hears it
    awaited: bool = False  # a request waits for it, and fails where the driver refuses a control
    refused: set[str] = set()  # controls that the driver refused to one of its processes
    ended: bool = False
    by_rule: bool = False  # a rule named it, and nobody else: it is released where no rule matches it any more
    rule_memory: dict[int, int | None] = {}  # what rules give each of its processes, in bytes
    old: bool = False  # nobody has looked yet for contexts that it may have had for long
    excluded: set[int] = msgspec.field(default_factory=ProcessIds)  # descendants that were detached by name
    outer: Root | None = None  # the tree that it was in already: that one's memory limit holds for it, too
    away: dict[TaskKey, Away] = {}
    heirs: dict[int, int] = {}
    owner: Owner = Owner(0)  # who answers for it
    own: dict[int, Own] = {}  # what processes of it ask for themselves for a while
    asked_of: dict[int, Asked] = {}  # what was asked for processes of it before they had work
    idle_since: float = msgspec.field(default_factory=time.monotonic)  # none of its processes has had a context since

    @property
    def is_anothers(self) -> bool:
        """Whether its process has become one of a user who is not its own."""
        uid = None if self.ended else owner_of(self.pid)
        return uid is not None and not may_answer_for(self.uid, uid)

    def forget_some(self) -> None:
        """Forget what was asked for processes that have ended, or become other programs: of the next few, whenever
        there is one more.
        """
        _forget_some(self.own)
        _forget_some(self.asked_of)

    def owns_of(self, pid: int) -> list[Own]:
        """What a process, or one above it in this tree, asks for itself now, the nearest last."""
        return [own for seen in self._below(pid, self.own) if (own := self.own[seen]).program.runs()]

    def asked_for(self, pid: int) -> list[Asked]:
        """What was asked for a process of this tree, or one above it, before it had a task, the nearest last."""
        known = self.asked_of
        return [known[seen] for seen in self._below(pid, known) if seen != self.pid and known[seen].program.runs()]

    def _below(self, pid: int, known: Container[int]) -> list[int]:
        """Of a process and those above it in this tree the ones that are known, the nearest last."""
        found: list[int] = []
        for seen in ancestors(pid) if known else ():
            if seen in known:
                found.insert(0, seen)
            if seen == self.pid:
                break
        return found

    def come_back(self, key: TaskKey) -> ManagedTask | None:
        """The task of a process that has work on a GPU again, with the settings that it had. A checkpoint may be
        restored on another GPU.
        """
        kept = next((kept for kept in (key, *self.away) if kept in self.away and kept.pid == key.pid), None)
        if kept is None:
            return None
        away = self.away.pop(kept)
        if not away.program.runs():
            return None
        away.task.task = replace(away.task.task, key=key)
        return away.task


_Asks = TypeVar("_Asks", "Asked", "Own")


class Asked(msgspec.Struct, frozen=True):
    """Settings that somebody asked for a process by its id."""

    program: Program
    settings: dict[str, str]


class Own(msgspec.Struct):
    """The `settings` that a process asks for itself for a while, on top of all others, and what it had before: its
    tasks and their controls, by key, and the limit of its tree. With `alone` nobody managed it.
    """

    program: Program
    settings: Mapping[str, str]
    alone: bool
    before: dict[TaskKey, tuple[Task, Mapping[str, str]]] = {}
    limit: int | None = None

    def let_go(self, keys: Container[str]) -> None:
        """Somebody else set these meanwhile: that stays."""
        self.settings = {key: word for key, word in self.settings.items() if key not in keys or key == "memory"}


def _forget_some(known: dict[int, _Asks]) -> None:
    for pid in [pid for pid, asked in next_of(known) if not asked.program.runs()]:
        del known[pid]


class Away(msgspec.Struct, frozen=True):
    """A task without a context, whose process lives: it closed its contexts, or was checkpointed."""

    program: Program
    task: ManagedTask


class Sms(msgspec.Struct, frozen=True):
    """The SMs that a client of MPS may use, as it was told when it started: their number, and in percent; None where it
    was not told.
    """

    number: int | None = None
    percent: float | None = None


NO_SMS = Sms()
"""Of a task that is no such client."""


class SuspendedBy(StrEnum):
    """Why a task is suspended, whatever the policy decides."""

    USER = "user"
    ROOM = "room"  # a limit of the rules leaves no room for it now
    MEMORY = "memory"  # its tree is over its memory limit
    POLICY = "policy"  # it did what the policy map forbids


UNSURE_S = 5.0
"""For how long a task is looked after whose group others have left."""
GAVE_WAY = "off at once: another task began to work"


class Count(StrEnum):
    """What views count beside usage, for each task, and for a GPU over all tasks that it ever had."""

    SUSPENSIONS = "suspensions"
    SLICES_PUT_BACK = "slices_put_back"
    SUSPENDED_AGAIN = "suspended_again"
    ROUSED = "roused"
    MEMORY_REFUSALS = "memory_refusals"  # of trees: the library counts them
    CONTROLS_ASKED = "controls_asked"  # of processes: the kernel plane counts them
    REQUESTS_REFUSED = "requests_refused"  # likewise


class ManagedTask(msgspec.Struct):
    """One process' contexts on one GPU, and the share in force there. `reached_by` names the way to its descriptors,
    empty where there is none.
    """

    task: Task
    contexts: dict[int, Context] = {}  # by the keeper's key
    share: Share = DEFAULT_SHARE
    controls: dict[str, str] = {}  # words of the driver's controls that are not at their defaults
    suspended_by: dict[SuspendedBy, str] = {}  # why, in words, for each cause
    rule: str = ""  # file and line of the rule that gave it its settings
    labels: Mapping[str, str] = {}  # of that rule
    shared_memory: int | None = None  # what its group may hold together on each GPU, in bytes
    asked: dict[str, str] = {}  # what was set for it alone; wins over its root's settings
    environment: Mapping[str, str] = {}  # as it was when rules first asked for it,
    variables: frozenset[str] = frozenset()  # and for which variables they did
    notes: tuple[str, ...] = ()  # what of that rule was lowered to a bound,
    unfit: str = ""  # and why it is not in force
    sms: Sms | None = None  # the part of the SMs that it was started with, once somebody asked
    command_line: str = ""
    cgroup: str = ""
    container: str = ""
    tail: Tail = msgspec.field(default_factory=Tail)  # of the latencies that it reports
    counts: Counter[Count] = msgspec.field(default_factory=Counter)
    counted: Counter[Count] = msgspec.field(default_factory=Counter)  # of these by the kernel; stays while it is away
    settles_at: float = float("-inf")  # until then (monotonic clock) its newest context may still be in the making
    there_since: float = 0.0  # monotonic clock: its oldest context was found
    discovery_ms: float = 0.0
    attach_ms: float = 0.0
    room_ms: float | None = None  # from its first channel group on until others were off for it; None: none were
    root: Root | None = None
    reached_by: str = ""
    waiting: str = ""  # who waits to checkpoint it while it is suspended, in words
    on_segment: Callable[[bool], None] | None = None  # is told after each run whether its segment is in force
    outside: str = ""  # why it cannot be managed: then it is only shown
    on_settle: Callable[[], None] | None = None  # it may be suspended at any moment, until this was called
    gave_way: bool = False  # it is off before the policy could decide
    copies: bool = False  # it went off at once, which left what it copies
    carrier: ManagedTask | None = None  # whose suspension takes it off the GPU, too: its own channels stay enabled
    disabled: bool = False  # its own channels are, or some of them
    # Until then (monotonic clock) others who share its group may end, and change it by that.
    unsure_until: float = float("-inf")

    def take_rule(
        self, rule: str, labels: Mapping[str, str], notes: tuple[str, ...], shared_memory: int | None
    ) -> None:
        """Take what a rule says beside settings."""
        self.rule, self.labels, self.notes, self.shared_memory = rule, labels, notes, shared_memory
        self.unfit = ""

    @property
    def user(self) -> int:
        """The user who answers for it: one may have many numbers."""
        return self.task.owner[0]

    @property
    def group_ids(self) -> set[int]:
        """Ids on the GPU of its channel groups that compete."""
        return {number for context in self.contexts.values() for number in context.group_ids}

    @property
    def queued(self) -> bool:
        """Whether it waits for room."""
        return SuspendedBy.ROOM in self.suspended_by

    @property
    def remark(self) -> str:
        """Why it has its share, where the daemon decided that and not the policy; else empty."""
        held = self.outside or self.waiting or self.suspended_by.get(SuspendedBy.MEMORY, "")
        held = held or self.suspended_by.get(SuspendedBy.POLICY, "")
        return held or (GAVE_WAY if self.gave_way else "")

    def told(self) -> Activity | None:
        """What its library tells of its work, now; None where it tells nothing."""
        return None if self.root is None else self.root.quota.activity(self.task.key.pid)

    def ask_for_work(self, *, asked: bool, announced: bool = False) -> None:
        """Have its library send a message when it next submits work, or announces some, or none."""
        if self.root is not None:
            self.root.quota.ask_for_work(self.task.key.pid, asked=asked, announced=announced)

    def watched_at(self) -> tuple[Handle, int] | None:
        """The file, and the place in it, where its library looks whether to say that it works."""
        return None if self.root is None else self.root.quota.watched_at(self.task.key.pid)

    def suspend_for(self, cause: SuspendedBy, why: str = "") -> None:
        """Keep it suspended from the scheduler's next run on, until every cause is gone."""
        self.suspended_by[cause] = why
        self.task = replace(self.task, suspended=True)

    def let_go(self, cause: SuspendedBy) -> None:
        """The cause is gone."""
        self.suspended_by.pop(cause, None)
        self.task = replace(self.task, suspended=bool(self.suspended_by))

    @property
    def as_batch(self) -> Task:
        """It in class batch."""
        return replace(self.task, task_class=TaskClass.BATCH, deadline=None)

    def take_as_batch(self) -> None:
        """Have it in class batch, whatever rules come."""
        self.task = self.as_batch
        self.asked["class"] = TaskClass.BATCH

    def slice_us(self, share: Share) -> int:
        """The compute slice that a share means for this task, in µs."""
        if share.timeslice_us is not None:
            return share.timeslice_us
        return max((context.found_us for context in self.contexts.values()), default=0)

    def set_timeslice(self, microseconds: int | None) -> None:
        """Set the slice of all groups; None for the slices that they were found with."""
        self.each(lambda context: context.set_timeslice(microseconds))
        self.share = replace(self.share, timeslice_us=microseconds)

    def set_enabled(self, enabled: bool) -> None:
        """Resume or suspend all channels; of one that has a carrier only those that are disabled already."""
        if self.on_settle is not None:
            self.settle()
            if not enabled and not self.share.enabled:  # it went off just now
                return
        self._bring(enabled)
        self.counts[Count.SUSPENSIONS] += self.share.enabled and not enabled
        self.share = replace(self.share, enabled=enabled)

    def _bring(self, enabled: bool) -> None:
        if self.carrier is not None and not (enabled and self.disabled):
            return
        self.disabled = True  # also where it fails halfway
        if not enabled:
            self.each(lambda context: context.suspend())
        elif self.copies:  # fewer channels take the driver less time
            self.each(lambda context: context.resume_at_once())
        else:
            self.each(lambda context: context.resume())
        self.disabled, self.copies = not enabled, False

    @property
    def is_off(self) -> bool:
        """Whether somebody's disabled channels keep it off the GPU: its own, or its carrier's."""
        return self.disabled or (self.carrier is not None and self.carrier.disabled)

    @property
    def is_shared(self) -> bool:
        """Whether its group is others', too: then they may keep each other on the GPU, or off it."""
        return self.carrier is not None or self.task.together is not None

    def be_carried(self, carrier: ManagedTask | None) -> None:
        """From here on that one's suspension is this one's, too. Where nobody keeps it off now, its share says so, and
        the scheduler's next run decides.
        """
        self.settle()
        self.carrier = carrier
        self.unsure_until = time.monotonic() + UNSURE_S
        if not self.is_off:
            self.share = replace(self.share, enabled=True)

    def take_in(self, context: Context) -> None:
        """Bring a context, or channels of one, that are new to what its share says."""
        if self.carrier is not None:
            return
        if not self.share.enabled and self.copies:
            self.suspend_again()  # all of it: which groups compute may have changed
        elif not self.share.enabled:
            self.disabled = True
            context.suspend()
        elif self.counts[Count.SUSPENSIONS]:  # what was made while its group was off may be off
            context.resume()

    def rouse(self) -> None:
        """It waits for a GPU that should run it, and does not."""
        self.settle()
        if self.share.enabled and self.carrier is None:
            self.each(lambda context: context.rouse())
            self.counts[Count.ROUSED] += 1

    def suspend_again(self) -> None:
        """It may have enabled itself, or copy still."""
        self.disabled, self.copies = True, False
        self.each(lambda context: context.suspend())

    def settle(self) -> None:
        """From here on nobody suspends it but us, and its share tells what is in force."""
        if self.on_settle is not None:
            self.on_settle()

    def was_suspended(self) -> None:
        """It is off: the actuator did it."""
        self.counts[Count.SUSPENSIONS] += self.share.enabled
        self.share = replace(self.share, enabled=False)
        self.disabled |= self.carrier is None
        self.gave_way, self.copies = True, self.carrier is None  # of one that is carried all copies go on

    def assert_enabled(self) -> None:
        """Suspend it or resume it once more, as its share says: somebody may have done the other."""
        self._bring(self.share.enabled)

    def set_right(self) -> None:
        """The same for one that may go off at once: a stranger may have changed it."""
        self.settle()
        self.assert_enabled()

    def set_control(self, name: str, word: str | None, renew: Callable[[int], None]) -> None:
        """Set a control of the driver in every context; None for its default. Where `undo` grows by it, `renew` is
        called first, with the keeper's key.
        """
        for key, context in self.contexts.items():
            if context.will_touch(name):
                renew(key)
        self.each(lambda context: context.set_control(name, word))
        self.controls.pop(name, None)
        if word is not None:
            self.controls[name] = word

    def preempt(self) -> None:
        """Take it off the GPU once. A failure does no harm: a lost task shows at the next control."""
        with contextlib.suppress(RunlistError, OSError):
            self.each(lambda context: context.preempt())

    def each(self, action: Callable[[Context], None]) -> None:
        """Do something to every context. One whose client was freed is left without groups."""
        for context in list(self.contexts.values()):
            try:
                action(context)
            except ContextGone:
                context.forget_groups()  # the next check takes it away

    def recount(self) -> None:
        """Tell the policy how many contexts compete now."""
        competing = max(1, sum(context.competing for context in self.contexts.values()))
        if competing != self.task.contexts:
            self.task = replace(self.task, contexts=competing)


class ManagedProcess:
    """A process with GPU work: its files by descriptor number (negative for lent ones), and its tasks by GPU. `holder`
    has the files: the process itself, and after its end another one that it left them to, whose pidfd it is then. While
    that one is `sought` nobody is known to have them.
    """

    def __init__(self, pid: int, pidfd: int, root: Root) -> None:
        self.pid = self.holder = pid
        self.pidfd = pidfd
        self.sought: asyncio.Task[None] | None = None
        self.root = root
        self.program = Program.of(pid)
        self.files: dict[int, Handle] = {}
        self.tasks: dict[str, ManagedTask] = {}

    def contexts(self) -> Iterator[Context]:
        """All contexts on all GPUs."""
        for task in self.tasks.values():
            yield from task.contexts.values()

    def keys(self, where: Callable[[Context], bool] = lambda _: True) -> list[int]:
        """The keeper's keys of the contexts for which `where` is true."""
        return [key for task in self.tasks.values() for key, context in task.contexts.items() if where(context)]

    def groups(self) -> set[Group]:
        """Every channel group that is managed."""
        return {(context.client, group) for context in self.contexts() for group in context.groups}

    def on_lost_files(self, lending: Lending) -> list[int]:
        """The keeper's keys of the contexts on files that the process no longer has open, after close or exec."""
        lost = [file for fd, file in list(self.files.items()) if not self._still_has(lending, fd, file)]
        if lost and (self.sought is not None or start_of(self.holder) is None):
            return []  # whoever has them now is looked for
        return self.keys(lambda context: any(context.handle is file for file in lost)) if lost else []

    def _still_has(self, lending: Lending, fd: int, file: Handle) -> bool:
        return lending.has(self.pid, fd) if fd < 0 else borrow.still_has(self.holder, fd, file.fileno())

    def close_unused(self) -> None:
        """Close our copies of files that no context is on."""
        used = {id(context.handle) for context in self.contexts()}
        for fd, file in list(self.files.items()):
            if id(file) not in used:
                del self.files[fd]
                file.close()

    def put_back(self) -> list[str]:
        """Undo everything in every context; returns what could not be undone."""
        self.settle()
        return [trouble for context in self.contexts() for trouble in context.put_back()]

    def settle(self) -> None:
        """From here on nobody suspends its tasks but us."""
        for task in self.tasks.values():
            task.settle()

    def close(self) -> None:
        """Close our copies. The process itself is untouched."""
        if self.sought is not None:
            self.sought.cancel()
        for file in self.files.values():
            file.close()
        self.files.clear()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
