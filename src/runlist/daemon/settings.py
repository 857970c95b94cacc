"""The settings of `runlist set PID key=value`: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from runlist.errors import UsageError
from runlist.model import Task, TaskClass
from runlist.rm.commands import Interleave
from runlist.rm.context import MAX_TIMESLICE_US, GpuContext, Setting


@dataclass(frozen=True)
class TaskChange:
    """A change to what the policy sees."""

    change: Callable[[Task], Task]


@dataclass(frozen=True)
class ContextChange:
    """A change made in the driver, to every context of a task. `value` and `default` are words of the setting.

    `privileged`: the driver asks for root or CAP_SYS_NICE, so a daemon that has it does this for root alone.
    """

    setting: Setting
    value: str
    default: str
    act: Callable[[GpuContext, str], None]
    privileged: bool


def parse_class(text: str) -> TaskClass:
    """A class by name. Raises UsageError."""
    return TaskClass(_one_of("class", text, [member.value for member in TaskClass]))


def parse_setting(key: str, value: str) -> TaskChange | ContextChange:
    """One `key=value`. Raises UsageError, saying what is allowed."""
    if key not in _SETTINGS:
        raise UsageError(f"no setting {key!r}: take {', '.join(_SETTINGS)}")
    return _SETTINGS[key](value)


def _one_of(key: str, value: str, allowed: list[str]) -> str:
    if value.lower() not in allowed:
        raise UsageError(f"{key}={value}: take {', '.join(allowed)}")
    return value.lower()


def _class(value: str) -> TaskChange:
    task_class = parse_class(value)
    return TaskChange(lambda task: replace(task, task_class=task_class))


def _timeslice(value: str) -> TaskChange:
    microseconds: int | None = None
    if value.lower() != "auto":
        try:
            microseconds = int(value)
        except ValueError:
            raise UsageError(f"timeslice={value}: take whole microseconds, or auto for what the policy says") from None
        if not 1 <= microseconds <= MAX_TIMESLICE_US:
            raise UsageError(f"timeslice={value}: take 1 to {MAX_TIMESLICE_US} (µs)")
    return TaskChange(lambda task: replace(task, timeslice_us=microseconds))


def _words(
    setting: Setting,
    words: Mapping[str, int],
    default: str,
    act: Callable[[GpuContext, int], None],
    *,
    privileged: bool = False,
) -> Callable[[str], ContextChange]:
    def parse(value: str) -> ContextChange:
        word = _one_of(setting.value, value, list(words))
        return ContextChange(setting, word, default, lambda context, which: act(context, words[which]), privileged)

    return parse


_SETTINGS: dict[str, Callable[[str], TaskChange | ContextChange]] = {
    "class": _class,
    "timeslice": _timeslice,
    Setting.INTERLEAVE.value: _words(
        Setting.INTERLEAVE,
        {level.name.lower(): level for level in Interleave},
        "low",
        lambda context, level: context.set_interleave(Interleave(level)),
        privileged=True,
    ),
}
