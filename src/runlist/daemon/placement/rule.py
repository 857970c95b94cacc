"""A rule, the limits of each GPU, and what matching a rule gives."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from runlist.daemon.placement.conditions import Condition
from runlist.daemon.placement.facts import Facts
from runlist.model import DEFAULT_WEIGHT, TaskClass
from runlist.proc.cgroup import CpuWeights, granted
from runlist.settings.values import MAX_GROUP_NAME

OF_A_PROCESS = ("cgroup", "container")
"""What is asked of the kernel, and costs little: rules that name it are found without trying all."""


_OF_THE_CGROUP = (*OF_A_PROCESS, "unit")

OF_THE_KERNEL = ("cgroup", "user", "comm")
"""What the kernel's programs know of who makes a request: rules that ask for nothing else are in the policy map."""

CPU_WEIGHTS = CpuWeights()
"""Those that rules gave to tasks: `set.weight = "cgroup"`."""


USER_DEADLINES = 0.5
"""Of a GPU, where rules say nothing else: one user alone must not have all that can be reserved, for ever."""

USER_WEIGHT = DEFAULT_WEIGHT
"""Where rules say nothing else: a user with many processes is as much as one with a single one."""


class Over(StrEnum):
    """What happens to a process that would exceed a limit: it waits, is not started, or runs as batch."""

    QUEUE = "queue"
    REFUSE = "refuse"
    BATCH = "batch"


class Limits(msgspec.Struct, frozen=True):
    """The most tasks, of all and of one user, and the most bytes of memory on one GPU; None is no limit. `where` is
    their line. `user_deadlines` is the part of a GPU that the deadlines of one user may take, and `user_weight` what
    the tasks of one user in one class weigh together at most, beyond what rules give them. `user_class` is the most
    important class that a user may ask for.
    """

    tasks: int | None = None
    memory: int | None = None
    over: Over = Over.QUEUE
    where: str = ""
    user_tasks: int | None = None
    user_deadlines: float = USER_DEADLINES
    user_weight: int = USER_WEIGHT
    user_class: TaskClass = TaskClass.DEADLINE


class Match(msgspec.Struct, frozen=True):
    """The settings and labels that a rule gives, its line, and what was lowered to a bound."""

    settings: dict[str, str]
    where: str
    labels: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()


class Refuse(msgspec.Struct, frozen=True):
    """What processes are refused: own changes of how they are scheduled, more channel groups than so many, and GPUs
    other than those with these numbers. None is no limit.
    """

    slices: bool = False
    groups: int | None = None
    gpus: frozenset[int] | None = None

    @property
    def words(self) -> dict[str, str]:
        """It for people, by key."""
        found = {
            "slices": "own" if self.slices else "",
            "groups": "" if self.groups is None else f"beyond {self.groups}",
            "gpus": "" if self.gpus is None else f"all but {', '.join(map(str, sorted(self.gpus))) or 'none'}",
        }
        return {key: text for key, text in found.items() if text}

    def __bool__(self) -> bool:
        return self.slices or self.groups is not None or self.gpus is not None


class Rule(msgspec.Struct, frozen=True):
    """One rule: what it asks for, by key, what it gives, and its file and line."""

    conditions: Mapping[str, Condition]
    settings: Mapping[str, str]
    where: str
    labels: Mapping[str, str] = {}
    asks: Mapping[str, str] = {}
    """What it asks for, in words."""
    refuse: Refuse = Refuse()

    @property
    def of_the_kernel(self) -> bool:
        """Whether it asks for nothing but what the kernel's programs know, and that in full."""
        return bool(self.conditions) and all(
            name in OF_THE_KERNEL and condition.exact for name, condition in self.conditions.items()
        )

    @property
    def like_patterns(self) -> list[str]:
        """Names of programs with what is a pattern elsewhere: few programs are called so."""
        comm = self.conditions.get("comm")
        return [] if comm is None else sorted(name for name in comm.exact if set(name) & set("*?"))

    @property
    def exact(self) -> tuple[str, frozenset[str]] | None:
        """The fact that has to be one of a few texts, and these; None where the rule names none."""
        for name in reversed(OF_A_PROCESS):
            if name in self.conditions and (texts := self.conditions[name].exact):
                return name, texts
        return None

    def matches(self, facts: Facts) -> bool:
        """Whether a process is all that the rule asks for."""
        return all(condition.matches(facts) for condition in self.conditions.values())

    def may_match(self, facts: Facts) -> bool:
        """The same, as far as the cgroup tells."""
        return all(self.conditions[name].matches(facts) for name in _OF_THE_CGROUP if name in self.conditions)

    def match(self, facts: Facts) -> Match:
        """What a process gets that matches."""
        return Match(_named(self.settings, facts), self.where, self.labels)


def _named(settings: Mapping[str, str], facts: Facts) -> dict[str, str]:
    """Settings with the group's name filled in: cgroup, container and user stand for the process' own. A process
    without one is in no group. The weight "cgroup" is that of its cgroup.
    """
    named = dict(settings)
    if settings.get("weight") == "cgroup":
        named["weight"] = str(CPU_WEIGHTS.of(facts.cgroup))
    names = {"cgroup": granted(facts.cgroup), "container": facts.container, "user": str(facts.uid)}
    kind = settings.get("group", "")
    if kind in names:
        del named["group"]
        if name := names[kind]:
            plain = "".join(letter if letter.isprintable() and letter != " " else "_" for letter in name)
            named["group"] = f"{kind}:{plain}"[:MAX_GROUP_NAME]
    return named
