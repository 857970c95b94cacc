"""What the daemon holds of a process: its borrowed files, and its work on each GPU."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from runlist.daemon.memory.quota import Quota
from runlist.daemon.tasks.lending import Lending
from runlist.errors import RunlistError
from runlist.model import DEFAULT_SHARE, Share, Task
from runlist.planes.interface import Borrower, Context, ContextGone, Group, Handle
from runlist.policies.parts.tail import Tail
from runlist.proc import borrow


@dataclass
class Root:
    """A process that a user, or a rule, named; its descendants are managed as it is.

    `settings` are those that were asked for it, as `key=value`; they win over the rules. `borrowers` are whoever can
    copy descriptors out of its processes, in the order in which they are to be asked. `quota` is what they may hold
    together.
    """

    pid: int
    pidfd: int
    uid: int
    settings: dict[str, str]
    borrowers: tuple[Borrower, ...] = (borrow.OwnRight(),)
    quota: Quota = field(default_factory=Quota)
    awaited: bool = False  # whoever asked for it waits, and is to be told when the driver refuses
    refused: set[str] = field(default_factory=set)  # controls that the driver refused to one of its processes
    ended: bool = False
    old: bool = False  # it may have had its contexts for long, and nobody looked yet
    excluded: set[int] = field(default_factory=set)  # descendants that were detached by name


class Hold(StrEnum):
    """Who keeps a task suspended."""

    USER = "user"
    ROOM = "room"  # it waits until a limit of the rules leaves room for it
    MEMORY = "memory"  # its tree holds more than it may, and nothing in this process sees to it


class Count(StrEnum):
    """What is counted beside usage, for views: of each task, and of a GPU with all that it ever had."""

    SUSPENSIONS = "suspensions"
    SLICES_PUT_BACK = "slices_put_back"
    MEMORY_REFUSALS = "memory_refusals"  # of trees: the library counts them


@dataclass
class ManagedTask:
    """One process' contexts on one GPU, and the share that is in force there. `reached_by` is the way on which its
    descriptor was had, empty where there was none.
    """

    task: Task
    contexts: dict[int, Context] = field(default_factory=dict)  # by the key that the keeper knows them by
    share: Share = DEFAULT_SHARE
    controls: dict[str, str] = field(default_factory=dict)  # of the driver, that are not at its defaults
    holds: dict[Hold, str] = field(default_factory=dict)  # who keeps it suspended, and why
    rule: str = ""  # where the rule is that gave it its settings
    command_line: str = ""
    cgroup: str = ""
    container: str = ""
    tail: Tail = field(default_factory=Tail)  # of the latencies that it reports
    counts: Counter[Count] = field(default_factory=Counter)
    settles_at: float = 0.0  # until then (monotonic clock) its newest context may still be in the making
    discovery_ms: float = 0.0
    attach_ms: float = 0.0
    root: Root | None = None
    reached_by: str = ""
    outside: str = ""  # why it cannot be managed: then it is only shown

    @property
    def queued(self) -> bool:
        """Whether it waits for room."""
        return Hold.ROOM in self.holds

    @property
    def remark(self) -> str:
        """What the daemon itself has to say of its share; empty where that is the policy's."""
        return self.outside or self.holds.get(Hold.MEMORY, "")

    def hold(self, who: Hold, why: str = "") -> None:
        """Keep it suspended from the scheduler's next run on, until each who held it has released it."""
        self.holds[who] = why
        self.task = replace(self.task, suspended=True)

    def release(self, who: Hold) -> None:
        """The reverse of `hold`."""
        self.holds.pop(who, None)
        self.task = replace(self.task, suspended=bool(self.holds))

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
        """Resume or suspend all channels."""
        self.each(lambda context: context.resume() if enabled else context.suspend())
        self.counts[Count.SUSPENSIONS] += self.share.enabled and not enabled
        self.share = replace(self.share, enabled=enabled)

    def set_control(self, name: str, word: str | None, renew: Callable[[int], None]) -> None:
        """Set a control of the driver in every context; None for the driver's default. `renew` is called with the
        keeper's key first where undoing means more from then on.
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
        """Do something to every context; one whose client was freed meanwhile is dropped."""
        for context in list(self.contexts.values()):
            try:
                action(context)
            except ContextGone:
                context.forget_groups()  # the next check takes it away

    def recount(self) -> None:
        """Tell the policy how many contexts compete now."""
        competing = sum(context.competing for context in self.contexts.values())
        self.task = replace(self.task, contexts=max(1, competing))


class ManagedProcess:
    """A process with GPU work: its pidfd, its borrowed files by descriptor number, its tasks by GPU.

    Files that it lent have negative numbers.
    """

    def __init__(self, pid: int, pidfd: int, root: Root) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.root = root
        self.files: dict[int, Handle] = {}
        self.tasks: dict[str, ManagedTask] = {}

    def contexts(self) -> Iterator[Context]:
        """All contexts on all GPUs."""
        for task in self.tasks.values():
            yield from task.contexts.values()

    def keys(self, where: Callable[[Context], bool] = lambda _: True) -> list[int]:
        """The keeper's keys of the contexts of which something holds."""
        return [key for task in self.tasks.values() for key, context in task.contexts.items() if where(context)]

    def groups(self) -> set[Group]:
        """Every channel group that is managed."""
        return {(context.client, group) for context in self.contexts() for group in context.groups}

    def has_client(self, client: int) -> bool:
        """Whether a context of a client is managed here."""
        return any(context.client == client for context in self.contexts())

    def on_lost_files(self, lending: Lending) -> list[int]:
        """The keeper's keys of the contexts on files that the process no longer holds: it closed them, or exec did."""
        lost = [file for fd, file in self.files.items() if not self._holds(lending, fd, file)]
        return self.keys(lambda context: any(context.handle is file for file in lost)) if lost else []

    def _holds(self, lending: Lending, fd: int, file: Handle) -> bool:
        return lending.holds(self.pid, fd) if fd < 0 else borrow.still_holds(self.pid, fd, file.fileno())

    def close_unused(self) -> None:
        """Close our copies of files that no context is on."""
        used = {id(context.handle) for context in self.contexts()}
        for fd, file in list(self.files.items()):
            if id(file) not in used:
                del self.files[fd]
                file.close()

    def put_back(self) -> list[str]:
        """Undo everything in every context; returns what could not be undone."""
        return [trouble for context in self.contexts() for trouble in context.put_back()]

    def close(self) -> None:
        """Close our copies. The process itself is untouched."""
        for file in self.files.values():
            file.close()
        self.files.clear()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
