"""The settings of a process: one table. `runlist set`, the options of `run` and `attach`, rules, traces of simulations,
their help and the guide come from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum

import msgspec

from runlist.errors import UsageError
from runlist.model import Cap, Deadline, Task, TaskClass, TaskKey
from runlist.model.limits import MAX_DEADLINE_PERIOD_US, MAX_PERIOD_US
from runlist.planes.control import Control
from runlist.planes.registry import controls
from runlist.settings import values
from runlist.settings.changes import Change, ControlChange, MemoryChange, TaskChange
from runlist.settings.conflicts import conflicts
from runlist.text import short


class Scope(StrEnum):
    """What a setting changes."""

    SHARE = "the share of each process"
    TREE = "the whole tree"
    DRIVER = "the driver, for each context"


class Setting(msgspec.Struct, frozen=True):
    """One setting. `values` names its values as people write them; a number alone counts `unit`s. `read` turns a value
    into a change, and raises ValueError with what is allowed.

    A `lasting` setting of a root is also given to processes that come later below it. For a `privileged` one the driver
    asks for root or a capability: a daemon that has it sets it for root and for its own user alone.
    """

    key: str
    values: str
    help: str
    read: Callable[[str], Change]
    unit: str = ""
    changes: Scope = Scope.SHARE
    lasting: bool = True
    privileged: bool = False


def _of_control(row: Control) -> Setting:
    def read(value: str) -> ControlChange:
        word = values.one_of(value, row.words)
        return ControlChange(row.name, None if word == row.default else word)

    about = f"{row.help} The driver's own is {row.default}."
    return Setting(row.name, "|".join(row.words), about, read, changes=Scope.DRIVER, privileged=row.privileged)


# In the order in which they are applied: a burst needs its cap, and a deadline says more than a class.
_ROWS = (
    Setting("class", "CLASS", "deadline, latency, normal or batch; default: what the rules say, else normal.",
            values.task_class),
    Setting("weight", "1..10000", "Its share against others of its kind; 100 is usual.", values.weight),
    Setting("cap", "PERCENT|QUOTA/PERIOD|max",
            'At most so much of the GPU: 30, 30% or 30ms/100ms, or "30000 100000" in µs.', values.cap, "percent"),
    Setting("burst", "DURATION|none",
            "How much unused time of its cap it may save up, such as 20ms: its quota at most.", values.burst),
    Setting("deadline", "BUDGET/PERIOD|none",
            "GPU time that it gets in every period, such as 5ms/20ms; sets the class, too.", values.deadline),
    Setting("p99", "DURATION|none", "Tail latency that its requests are to keep, such as 5ms; it must report them.",
            values.p99),
    Setting("group", "NAME|none", "Share as one with all processes of this group.", values.group),
    Setting("memory", "SIZE|max",
            "What all of it together may hold on each GPU, such as 8G or 1.5GiB; for trees with the library.",
            values.memory, "bytes", Scope.TREE),
    Setting("timeslice", "DURATION|auto", "A slice held whatever the policy says, such as 500us or 2ms, up to 60s.",
            values.timeslice, "µs"),
    *map(_of_control, controls()),
)  # fmt: skip

SETTINGS = {row.key: row for row in _ROWS}

GIVEN = ("task_class", "weight", "cap", "deadline", "target_p99_us", "group", "group_of", "timeslice_us")
"""The fields of a task that settings give."""

NO_SETTINGS = Task(TaskKey(0, ""), TaskClass.NORMAL, "", 0, 0.0)
"""A task without settings."""

ANY_TASK = replace(NO_SETTINGS, cap=Cap(MAX_PERIOD_US, MAX_PERIOD_US), deadline=Deadline(1, MAX_DEADLINE_PERIOD_US))
"""A task that leaves as much open as can be: a request that is refused on it is refused on every one."""


def parse_settings(settings: Mapping[str, str], onto: Task = NO_SETTINGS) -> list[Change]:
    """Changes for a whole mapping, in the order in which they are to be applied.

    They are tried on the task `onto`, so that settings that conflict are refused here: pass the task itself where it
    has settings already. Raises UsageError, saying what is allowed.
    """
    for key in settings:
        _check_key(key)
    changes = [parse_setting(key, settings[key]) for key in SETTINGS if key in settings]
    apply_changes(changes, onto)
    return changes


def parse_request(settings: Mapping[str, str], onto: Task = NO_SETTINGS) -> tuple[list[Change], list[str]]:
    """As `parse_settings`, for what somebody asks for at once, and what is to be said of it. Raises UsageError also for
    settings that cannot be meant together.
    """
    changes = parse_settings(settings, onto)
    return changes, conflicts(settings, apply_changes(changes, onto))


def parse_setting(key: str, value: str) -> Change:
    """The change of one `key=value`. Raises UsageError, saying what is allowed; so does the change on a wrong task."""
    _check_key(key)
    with _naming(key, value):
        change = SETTINGS[key].read(value)
    if not isinstance(change, TaskChange):
        return change

    def named(task: Task) -> Task:
        with _naming(key, value):
            return change.change(task)

    return TaskChange(named)


def apply_changes(changes: Iterable[Change], onto: Task = NO_SETTINGS) -> Task:
    """The task after the changes, but for those of controls and memory. Raises UsageError where changes conflict."""
    for change in changes:
        if isinstance(change, TaskChange):
            onto = change.change(onto)
    return onto


def memory_change(changes: Iterable[Change]) -> MemoryChange | None:
    """The change of the memory limit, or None."""
    return next((change for change in changes if isinstance(change, MemoryChange)), None)


def control_words(changes: Iterable[Change]) -> dict[str, str]:
    """The driver's controls that changes set, with their words; without those at their defaults."""
    return {change.control: change.word for change in changes if isinstance(change, ControlChange) and change.word}


def override(settings: Mapping[str, str], stronger: Mapping[str, str]) -> dict[str, str]:
    """Settings overlaid by stronger ones, which also drop some: a new class ends a deadline, a deadline replaces the
    class, and a new cap drops the old burst.
    """
    dropped = set()
    if stronger.get("class", TaskClass.DEADLINE).lower() != TaskClass.DEADLINE:
        dropped.add("deadline")
    if not values.is_none(stronger.get("deadline", "none")):
        dropped.add("class")
    if "cap" in stronger:
        dropped.add("burst")
    return {**{key: value for key, value in settings.items() if key not in dropped}, **stronger}


_AT_START = {"sms", "share"}
"""What a program is given as it starts, and cannot be changed after."""


def _check_key(key: str) -> None:
    if key in _AT_START:
        raise UsageError(
            f"{key} cannot be set: MPS gives SMs to a program when it starts (runlist run --share sms --sms 40% -- CMD)"
        )
    if key not in SETTINGS:
        raise UsageError(f"no setting {short(key)!r}: take {', '.join(SETTINGS)}")


@contextlib.contextmanager
def _naming(key: str, value: str) -> Iterator[None]:
    """Errors about a value name it."""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{key}={short(value)}: {error}") from None
