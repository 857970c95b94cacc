"""The policy map: rules that name a cgroup, a user or a thread's name, as the kernel's programs look them up.

This daemon is the one writer of its map. Entries are of a generation; a new one is written beside the old, and counts
from one write on: at no moment is half of it in force.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from runlist.daemon.placement.book import RuleBook
from runlist.daemon.placement.facts import Facts
from runlist.daemon.placement.rule import Match, Rule
from runlist.model import TaskClass
from runlist.planes.kernel.bpf import Map
from runlist.planes.kernel.maps import MOST_ENTRIES, STRUCTURES
from runlist.proc import cgroup
from runlist.protocol import kernel_autogen as protocol
from runlist.settings.table import apply_changes, parse_settings

_log = structlog.get_logger()

_KEY, _VALUE, _FORCE = (STRUCTURES[name] for name in ("POLICY_KEY", "POLICY", "FORCE"))
_ORDER = list(TaskClass)
MOST_LOOKED_AT = 2 * MOST_ENTRIES
"""Entries, those behind others with them: a rule that names a thousand cgroups, users and threads makes 10⁹."""

_BY_THE_PROCESS = ("cgroup", "container", "user")
"""Words of a setting that stand for something of the process."""
_ONE = bytes(4)


class Entry(msgspec.Struct, frozen=True):
    """Whom it names, the rule, and its place among all. `cgroup_id` is None while there is no such cgroup; `sure` says
    that no rule before it can match its processes.
    """

    rule: Rule
    order: int
    sure: bool
    cgroup: str | None = None
    user: int | None = None
    comm: str | None = None
    cgroup_id: int | None = None
    number: int = 0
    behind: str = ""
    """The rule that always counts instead: it comes before, and names all that this one does."""

    @property
    def waits(self) -> bool:
        """Whether its cgroup is yet to come, or gone."""
        return self.cgroup is not None and self.cgroup_id is None

    @property
    def who(self) -> tuple[str | None, int | None, str | None]:
        """Whom it names."""
        return self.cgroup, self.user, self.comm

    def match(self) -> Match | None:
        """What its processes get, where that needs nothing else of them."""
        if not self.sure:
            return None
        return self.rule.match(Facts(self.user if self.user is not None else -1, cgroup=self.cgroup or ""))

    def key(self, generation: int) -> bytes:
        """As the kernel's programs look it up."""
        return bytes(
            _KEY.pack(
                cgroup=self.cgroup_id or 0, user=self.user or 0, comm=(self.comm or "").encode(), which=self.which,
                generation=generation,
            )
        )  # fmt: skip

    @property
    def which(self) -> int:
        """What of its key counts."""
        named = zip(self.who, (protocol.BY_CGROUP, protocol.BY_USER, protocol.BY_COMM), strict=True)
        return sum(bit for one, bit in named if one is not None)

    @property
    def flags(self) -> int:
        """What it refuses, and whether it places."""
        refuse = self.rule.refuse
        return (
            protocol.REFUSE_SLICES * refuse.slices
            | protocol.REFUSE_GROUPS * (refuse.groups is not None)
            | protocol.REFUSE_GPUS * (refuse.gpus is not None)
            | protocol.PLACES_TASK * self.sure
        )

    def value(self) -> bytes:
        """What the kernel's programs find."""
        refuse = self.rule.refuse
        words = {**self.rule.settings}
        if words.get("weight") == "cgroup":
            del words["weight"]
        task = apply_changes(parse_settings(words))
        return bytes(
            _VALUE.pack(
                order=self.order, number=self.number, flags=self.flags, class_=_ORDER.index(task.task_class),
                weight=task.weight, slice_us=task.timeslice_us or 0, most_groups=refuse.groups or 0,
                gpus=sum(1 << number for number in refuse.gpus or ()),
            )
        )  # fmt: skip


def entries_of(book: RuleBook) -> list[Entry]:
    """The entries that rules make, in the order in which they count: the first MOST_LOOKED_AT."""
    found: list[Entry] = []
    above = cgroup.unified()
    first: dict[tuple[str | None, int | None, str | None], tuple[int, str]] = {}
    sure, by_cgroup = True, False
    for order, (rule, within) in enumerate(book.in_order()):
        if not rule.of_the_kernel:
            sure = False
            continue
        settings = rule.settings
        own = settings.get("group") in _BY_THE_PROCESS or settings.get("weight") == "cgroup"
        # One by cgroup may have been left out for another number: a cgroup that is new, or that only a look knows.
        names = "cgroup" in rule.conditions or not by_cgroup
        by_cgroup = by_cgroup or "cgroup" in rule.conditions
        for entry in _of_rule(rule, order, sure and within and not own and names, above):
            named = itertools.product(*({one, None} for one in entry.who))
            _, behind = min((first[who] for who in named if who in first), default=(0, ""))
            found.append(msgspec.structs.replace(entry, behind=behind) if behind else entry)
            if not behind:
                first[entry.who] = order, rule.where
            if len(found) >= MOST_LOOKED_AT:
                return found
        sure = sure and within
    return found


def _of_rule(rule: Rule, order: int, sure: bool, above: Path | None) -> Iterator[Entry]:
    texts = [sorted(rule.conditions[name].exact) if name in rule.conditions else [None] for name in _NAMES]
    for path, user, comm in itertools.product(*texts):
        yield Entry(
            rule, order, sure, path, None if user is None else int(user), comm,
            None if path is None else cgroup.number_of(path, above),
        )  # fmt: skip


_NAMES = ("cgroup", "user", "comm")


class PolicyMap:
    """The entries of a rule book, in the kernel's map while there is one. `trouble` says why they are not in force."""

    def __init__(self, book: RuleBook) -> None:
        self.entries: list[Entry] = []
        self.unused: list[Entry] = []
        """Those behind others, which are not in the map."""
        self.trouble = ""
        self._book = book
        self._maps: tuple[Map, Map] | None = None
        self._numbers = itertools.count(1)
        self._generation = 0
        self._known: dict[int, Entry] = {}
        self._before: dict[int, Entry] = {}  # of the generation before, of which the ring may still tell
        self.update()

    def entry(self, number: int) -> Entry | None:
        """The entry that an event names."""
        return self._known.get(number) or self._before.get(number)

    def number_for(self, cgroup_id: int, user: int, comm: str) -> int:
        """The number of the first entry that names a process, 0 where none does: as the kernel's programs find it."""
        who = (cgroup_id, user, comm)
        for entry in self.entries:
            asked = (entry.cgroup_id, entry.user, entry.comm)
            if not entry.waits and all(want is None or want == has for want, has in zip(asked, who, strict=True)):
                return entry.number
        return 0

    def attach(self, policy: Map, force: Map) -> None:
        """Write to these maps from now on, which are new."""
        self._maps = (policy, force)
        self._write(self.entries, [])

    def detach(self) -> None:
        """There are none now."""
        self._maps = None

    def look(self) -> None:
        """Cgroups may have come or gone: bring the map to those of now. What could not be done is tried again."""
        named = [entry for entry in (*self.entries, *self.unused) if entry.cgroup is not None]
        above = cgroup.unified() if named else None
        if self.trouble or any(cgroup.number_of(entry.cgroup or "", above) != entry.cgroup_id for entry in named):
            self.update()

    def update(self) -> None:
        """Rules or cgroups may have changed: bring the map to them, at once or not at all."""
        every = entries_of(self._book)
        wanted = [entry for entry in every if not entry.behind]
        if len(wanted) > MOST_ENTRIES or len(every) >= MOST_LOOKED_AT:
            many = f"more than {MOST_LOOKED_AT}" if len(every) >= MOST_LOOKED_AT else len(wanted)
            self._say(f"{many} entries, and there is room for {MOST_ENTRIES}: name fewer; the map is as it was")
            return
        self.unused = [entry for entry in every if entry.behind]
        kept = {(entry.rule.where, entry.who): entry for entry in self.entries}
        wanted = [self._numbered(entry, kept.get((entry.rule.where, entry.who))) for entry in wanted]
        if wanted == self.entries and not self.trouble:
            return
        if self._maps is None or self._write(wanted, self.entries):
            self._before, self._known = self._known, {entry.number: entry for entry in wanted}
            self.entries, self.trouble = wanted, ""

    def _numbered(self, entry: Entry, known: Entry | None) -> Entry:
        if known is not None and msgspec.structs.replace(known, number=0) == entry:
            return known
        return msgspec.structs.replace(entry, number=next(self._numbers))

    def _write(self, entries: Sequence[Entry], old: Sequence[Entry]) -> bool:
        assert self._maps is not None
        policy, force = self._maps
        generation, written = self._generation + 1, []
        try:
            for entry in entries:
                if not entry.waits:
                    policy.put(entry.key(generation), entry.value())
                    written.append(entry.key(generation))
            which = 0
            for entry in entries:
                refuses = protocol.FORCE_REFUSES if entry.rule.refuse else 0
                which |= 0 if entry.waits else 1 << entry.which | refuses
            force.put(_ONE, bytes(_FORCE.pack(generation=generation, which=which)))
        except OSError as error:
            for key in written:
                policy.delete(key)
            self._say(f"the policy map cannot be written ({error.strerror}): it is as it was")
            return False
        for entry in old:
            if not entry.waits:
                policy.delete(entry.key(self._generation))
        self._generation = generation
        return True

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            _log.warning("the policy map stays as it was", reason=trouble)
        self.trouble = trouble
