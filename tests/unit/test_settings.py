"""`runlist set`: words in, changes out."""

from __future__ import annotations

import pytest

from runlist.daemon.settings import ContextChange, TaskChange, parse_class, parse_setting
from runlist.errors import UsageError
from runlist.model import Task, TaskClass, TaskKey
from runlist.rm.commands import Interleave
from runlist.rm.context import GpuContext, Setting

TASK = Task(TaskKey(1, "GPU-0"), TaskClass.NORMAL, "x", 0, 0.0, timeslice_us=9)


def changed(key: str, value: str) -> Task:
    change = parse_setting(key, value)
    assert isinstance(change, TaskChange)
    return change.change(TASK)


@pytest.mark.parametrize("name", ["latency", "normal", "batch", "BATCH"])
def test_class(name: str) -> None:
    assert changed("class", name).task_class == TaskClass(name.lower()) == parse_class(name)


@pytest.mark.parametrize(
    ("value", "expected"), [("1", 1), ("2048", 2048), ("60000000", 60_000_000), ("auto", None), ("AUTO", None)]
)
def test_timeslice(value: str, expected: int | None) -> None:
    assert changed("timeslice", value).timeslice_us == expected


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def __getattr__(self, name: str) -> object:
        return lambda value: self.calls.append((name, value))


@pytest.mark.parametrize(
    ("key", "value", "setting", "default", "call"),
    [
        ("interleave", "low", Setting.INTERLEAVE, "low", ("set_interleave", Interleave.LOW)),
        ("interleave", "HIGH", Setting.INTERLEAVE, "low", ("set_interleave", Interleave.HIGH)),
    ],
)
def test_driver_settings(key: str, value: str, setting: Setting, default: str, call: tuple[str, object]) -> None:
    change = parse_setting(key, value)
    assert isinstance(change, ContextChange)
    assert (change.setting, change.value, change.default) == (setting, value.lower(), default)
    recorder = Recorder()
    change.act(recorder, change.value)  # type: ignore[arg-type]
    assert recorder.calls == [call]
    assert hasattr(GpuContext, call[0])
    change.act(recorder, change.default)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("class", "fast", "class=fast: take latency, normal, batch"),
        ("class", "", "class=: take"),
        ("timeslice", "0", "take 1 to 60000000"),
        ("timeslice", "-1", "take 1 to"),
        ("timeslice", "60000001", "take 1 to"),
        ("timeslice", "1.5", "take whole microseconds, or auto"),
        ("timeslice", "1ms", "take whole microseconds"),
        ("timeslice", "50%", "take whole microseconds"),
        ("timeslice", "nan", "take whole microseconds"),
        ("interleave", "3", "interleave=3: take low, medium, high"),
        ("memory", "4G", "no setting 'memory': take class, timeslice, interleave"),
        ("", "x", "no setting ''"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(key: str, value: str, line: str) -> None:
    with pytest.raises(UsageError, match=line.replace("(", r"\(")):
        parse_setting(key, value)


@pytest.mark.parametrize("digits", ["9" * 5000, "1_000"])
def test_odd_numbers(digits: str) -> None:
    """Python takes underscores, and refuses very long numbers with an error of its own."""
    if "_" in digits:
        assert changed("timeslice", digits).timeslice_us == 1000
        return
    with pytest.raises(UsageError):
        parse_setting("timeslice", digits)
