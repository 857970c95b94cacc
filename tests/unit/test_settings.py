"""`runlist set`: words in, changes out."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runlist.errors import UsageError
from runlist.model import Cap, Deadline, Task, TaskClass, TaskKey
from runlist.planes.control import Control
from runlist.planes.registry import controls
from runlist.settings.changes import ControlChange, MemoryChange, TaskChange
from runlist.settings.help import command_help, described, guide_table
from runlist.settings.table import (
    GIVEN,
    NO_SETTINGS,
    SETTINGS,
    Scope,
    apply_changes,
    control_words,
    memory_change,
    override,
    parse_request,
    parse_setting,
    parse_settings,
)

TASK = Task(TaskKey(1, "GPU-0"), TaskClass.NORMAL, "x", 0, 0.0, timeslice_us=9)


def changed(key: str, value: str, task: Task = TASK) -> Task:
    change = parse_setting(key, value)
    assert isinstance(change, TaskChange)
    return change.change(task)


def applied(settings: dict[str, str], task: Task = NO_SETTINGS) -> Task:
    for change in parse_settings(settings, task):
        assert isinstance(change, TaskChange)
        task = change.change(task)
    return task


@pytest.mark.parametrize("name", ["deadline", "latency", "normal", "batch", "BATCH"])
def test_class(name: str) -> None:
    assert changed("class", name).task_class == TaskClass(name.lower())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", 1), ("2048", 2048), ("60000000", 60_000_000), ("auto", None), ("AUTO", None), (" 7 ", 7),
        ("2000.0", 2000), ("500us", 500), ("2ms", 2_000), ("1.001 ms", 1_001), ("60s", 60_000_000)
    ],
)  # fmt: skip
def test_timeslice(value: str, expected: int | None) -> None:
    assert changed("timeslice", value).timeslice_us == expected


@pytest.mark.parametrize("row", controls(), ids=lambda row: row.name)
def test_a_control_of_the_driver(row: Control) -> None:
    """Each of its words, in letters of any size; the driver's own is what undoing sets."""
    for word in row.words:
        change = parse_setting(row.name, word.upper())
        assert change == ControlChange(row.name, None if word == row.default else word)
        assert control_words([change]) == ({} if word == row.default else {row.name: word})
    with pytest.raises(UsageError, match=f"{row.name}=3: take {', '.join(row.words)}"):
        parse_setting(row.name, "3")
    setting = SETTINGS[row.name]
    assert (setting.privileged, setting.changes, setting.lasting) == (row.privileged, Scope.DRIVER, True)


def test_the_table_is_what_people_read() -> None:
    """Every setting is in the help of `set` and in the guide's table, with all that is known of it."""
    lines = command_help().splitlines()
    rows = guide_table().splitlines()[2:]
    assert len(rows) == len(SETTINGS)
    for row, shown in zip(SETTINGS.values(), rows, strict=True):
        assert f"{row.key}={row.values}: {described(row)}" in lines
        assert shown.startswith(f"| `{row.key}` | `{row.values.split('|')[0]}`")
        assert shown.endswith(f"| {described(row)} | {row.changes} |")
    assert described(SETTINGS["timeslice"]).endswith("A number alone is µs.")
    assert "own user" in described(SETTINGS["interleave"])
    assert "own user" not in described(SETTINGS["memory"])


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("class", "fast", "class=fast: take deadline, latency, normal, batch"),
        ("class", "", "class=: take"),
        ("timeslice", "0", "take 1 µs to 60 s"),
        ("timeslice", "-1", "take 1 µs to"),
        ("timeslice", "60000001", "take 1 µs to"),
        ("timeslice", "1.5", "timeslice=1.5: take whole microseconds (2000), a duration (500us, 2ms), or auto"),
        ("timeslice", "1.5us", "take whole microseconds"),
        ("timeslice", "61s", "timeslice=61s: take 1 µs to 60 s"),
        ("timeslice", "2m", "take whole microseconds"),
        ("timeslice", "50%", "take whole microseconds"),
        ("timeslice", "nan", "take whole microseconds"),
        ("interleave", "3", "interleave=3: take low, medium, high"),
        ("size", "4G", "no setting 'size': take class, weight, cap, burst, deadline, p99, group, memory, timeslice"),
        ("memory", "4Q", "memory=4Q: take a size, such as 8G, 512M, 1.5GiB or bytes, or max for no limit"),
        ("memory", "-4G", "take a size"),
        ("memory", "", "take a size"),
        ("memory", "1e9", "take a size"),
        ("memory", "2000T", "take a size"),
        ("memory", "8", "memory=8: 8 B let no program use a GPU: give the unit, as in 8G, or max for no limit"),
        ("memory", "0", "0 B let no program use a GPU: give the unit, as in 8G, or max for no limit"),
        ("memory", "0G", "0 B let no program use a GPU"),
        ("memory", "64k", "64.0 KiB let no program use a GPU"),
        ("memory", "٨G", "take a size"),
        ("weight", "٣", "take a whole number"),
        ("timeslice", "٣", "take whole microseconds"),
        ("cap", "٣٠", "take a percentage"),
        ("p99", "٣ms", "take a number and a unit"),
        ("", "x", "no setting ''"),
        ("weight", "0", "weight=0: a weight is 1 to 10000, not 0"),
        ("weight", "10001", "a weight is 1 to 10000"),
        ("weight", "-5", "a weight is 1 to 10000"),
        ("weight", "1.5", "take a whole number, 1 to 10000"),
        ("cap", "0", "cap=0: a cap is 1 to 100 % of the GPU, not 0"),
        ("cap", "101%", "a cap is 1 to 100 %"),
        ("cap", "-5", "take a percentage"),
        ("cap", "nan", "take a percentage"),
        ("cap", "1e2", "take a percentage"),
        ("cap", "", "take a percentage"),
        ("cap", "30000 5000", "a cap's period is 10 ms to 1 s, not 5 ms"),
        ("cap", "200000 100000", "a cap is 1 to 100 %"),
        ("cap", "none", "or max for no cap"),
        ("cap", "30ms", "cap=30ms: take a percentage (30 or 30%), 30ms/100ms,"),
        ("cap", "30/100", "cap=30/100: take a number and a unit"),
        ("cap", "30000/100000", "take a number and a unit"),
        ("cap", "30ms/5ms", "a cap's period is 10 ms to 1 s, not 5 ms"),
        ("cap", "0.5ms/100ms", "a cap is 1 to 100 %"),
        ("cap", "max/100ms", "take a number and a unit"),
        ("burst", "5", "take a number and a unit"),
        ("burst", "-5ms", "take a number and a unit"),
        ("burst", "5 minutes", "take a number and a unit"),
        ("deadline", "5ms", "take BUDGET/PERIOD, such as 5ms/20ms, or none"),
        ("deadline", "50ms/20ms", "a deadline's budget is more than 0 and at most its period"),
        ("deadline", "0ms/20ms", "a deadline's budget is more than 0"),
        ("deadline", "1ms/9.999ms", "a deadline's period is 10 ms to 10 s, not 9.999 ms"),
        ("deadline", "5/20ms", "deadline=5/20ms: take a number and a unit"),
        ("deadline", "5ms/20ms/2ms", "take a number and a unit"),
        ("p99", "0ms", "p99=0ms: take more than 0, or none"),
        ("p99", "2h", "take a number and a unit"),
        ("p99", "86401s", "take a day at most"),
        ("group", "", "take a name of 1 to 1024 characters, no spaces, or none"),
        ("group", "pid 5", "no spaces"),
        ("group", "a\nb", "group=a?b: take a name"),
        ("group", "x" * 1025, "take a name"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(key: str, value: str, line: str) -> None:
    with pytest.raises(UsageError, match=re.escape(line)):
        parse_setting(key, value)


@pytest.mark.parametrize("digits", ["9" * 5000, "1_000"])
def test_odd_numbers(digits: str) -> None:
    """Python takes underscores, and refuses very long numbers with an error of its own."""
    if "_" in digits:
        assert changed("timeslice", digits).timeslice_us == 1000
        return
    with pytest.raises(UsageError):
        parse_setting("timeslice", digits)


@pytest.mark.parametrize("key", ["timeslice", "weight", "cap", "burst", "p99", "deadline", "class", "group", "memory"])
def test_a_long_value_is_shown_short_and_on_one_line(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_setting(key, "9\n" * 5000)
    assert len(str(caught.value)) < 220
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("8G", 8 << 30), ("512M", 512 << 20), ("1.5GiB", 3 << 29), ("1.5 gib", 3 << 29), ("1073741824", 1 << 30),
        ("8GB", 8 * 10**9), ("2MiB", 2 << 20), ("max", None), ("none", None),
    ],
)  # fmt: skip
def test_memory_is_of_the_tree_and_not_of_the_task(text: str, limit: int | None) -> None:
    changes = parse_settings({"memory": text, "weight": "7"})
    assert parse_setting("memory", text) == MemoryChange(limit) == memory_change(changes)
    assert apply_changes(changes, TASK) == replace(TASK, weight=7)
    assert memory_change(parse_settings({"weight": "7"})) is None


@pytest.mark.parametrize(
    ("settings", "task", "line"),
    [
        ({"class": "batch", "deadline": "5ms/20ms"}, TASK, "class=batch and deadline=5ms/20ms exclude each other"),
        ({"class": "Latency", "deadline": "5ms/20ms"}, TASK, "class=latency and deadline=5ms/20ms exclude each other"),
        ({"class": "deadline"}, TASK, "class=deadline takes a budget and a period: say deadline=BUDGET/PERIOD"),
        ({"class": "deadline", "deadline": "none"}, TASK, "class=deadline takes a budget and a period"),
        ({"class": "batch", "p99": "5ms"}, TASK, "class=batch, p99=5ms: a target has no effect for class batch"),
        (
            {"cap": "10", "deadline": "5ms/20ms"}, TASK,
            "cap=10, deadline=5ms/20ms: the deadline asks for 25 % of the GPU, and the cap allows 10 %",
        ),
        ({"burst": "5ms", "cap": "max"}, TASK, "a burst goes with a cap"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_together_is_refused(settings: dict[str, str], task: Task, line: str) -> None:
    with pytest.raises(UsageError, match=re.escape(line)):
        parse_request(settings, task)


@pytest.mark.parametrize(
    ("settings", "values", "said"),
    [
        ({"class": "batch"}, {"target_p99_us": 5000.0}, "a target has no effect for class batch"),
        ({"p99": "5ms"}, {"task_class": TaskClass.BATCH}, "a target has no effect for class batch"),
        ({"cap": "10"}, {"task_class": TaskClass.DEADLINE, "deadline": Deadline(5_000, 20_000)}, "raise the cap"),
        ({"deadline": "5ms/20ms"}, {"cap": Cap(10_000)}, "raise the cap"),
        ({"weight": "200", "deadline": "5ms/20ms"}, {}, "a weight has no effect for class deadline"),
        ({"class": "batch", "deadline": "none"}, {}, None),
        ({"class": "deadline", "deadline": "5ms/20ms", "cap": "25"}, {}, None),
        ({"class": "deadline"}, {"deadline": Deadline(5_000, 20_000), "task_class": TaskClass.DEADLINE}, None),
        ({"class": "batch", "p99": "none"}, {}, None),
        ({"timeslice": "2ms"}, {"task_class": TaskClass.BATCH, "target_p99_us": 5000.0}, None),
        ({"deadline": "5ms/20ms"}, {"weight": 50}, None),
    ],
)
def test_what_has_no_effect_on_this_task_is_said(
    settings: dict[str, str], values: dict[str, object], said: str | None
) -> None:
    _, notes = parse_request(settings, replace(TASK, **values))
    assert len(notes) == (said is not None)
    assert said is None or said in notes[0]


def test_weights_and_groups() -> None:
    assert [changed("weight", word).weight for word in ("1", "10000", " 50 ")] == [1, 10000, 50]
    assert changed("group", "train/7").group == "train/7"
    assert changed("group", "none", replace(TASK, group="x")).group == ""


@pytest.mark.parametrize(
    ("text", "cap"),
    [
        ("30", Cap(30_000)),
        ("30%", Cap(30_000)),
        ("12.5 %", Cap(12_500)),
        ("30000 200000", Cap(30_000, 200_000)),
        ("30ms/100ms", Cap(30_000, 100_000)),
        ("0.5 s/1s", Cap(500_000, 1_000_000)),
        ("max", None),
        ("max 100000", None),
    ],
)
def test_caps(text: str, cap: Cap | None) -> None:
    assert changed("cap", text, replace(TASK, cap=Cap(9_000))).cap == cap


def test_a_burst_goes_with_a_cap() -> None:
    capped = replace(TASK, cap=Cap(30_000))
    assert changed("burst", "5ms", capped).cap == Cap(30_000, burst_us=5_000)
    assert changed("burst", "none", replace(TASK, cap=Cap(30_000, burst_us=9))).cap == Cap(30_000)
    assert changed("burst", "0").cap is None
    with pytest.raises(UsageError, match="burst=5ms: a burst goes with a cap: give cap, too"):
        changed("burst", "5ms")
    with pytest.raises(UsageError, match="burst=31ms: a cap's burst is 0 to its quota"):
        changed("burst", "31ms", capped)
    kept = replace(TASK, cap=Cap(30_000, burst_us=20_000))
    assert changed("cap", "40", kept).cap == Cap(40_000, burst_us=20_000)
    with pytest.raises(UsageError, match=r"cap=10: .*: give a smaller burst with it"):
        changed("cap", "10", kept)


def test_a_deadline_is_a_class() -> None:
    task = changed("deadline", "5ms/20ms")
    assert (task.task_class, task.deadline) == (TaskClass.DEADLINE, Deadline(5_000, 20_000))
    assert changed("class", "deadline", task) == task
    assert changed("deadline", "none", task) == TASK
    assert changed("class", "batch", task).deadline is None
    assert changed("deadline", "none", replace(TASK, task_class=TaskClass.BATCH)).task_class is TaskClass.BATCH


def test_targets() -> None:
    assert changed("p99", "5ms").target_p99_us == 5_000
    assert changed("p99", "none", replace(TASK, target_p99_us=1.0)).target_p99_us is None


def test_a_whole_mapping_is_applied_in_the_order_that_makes_sense() -> None:
    task = applied({"deadline": "1ms/10ms", "burst": "5ms", "class": "normal", "cap": "30", "weight": "7"})
    assert task.cap == Cap(30_000, burst_us=5_000)
    assert (task.task_class, task.weight) == (TaskClass.DEADLINE, 7)
    assert applied({"burst": "5ms"}, replace(TASK, cap=Cap(30_000))).cap == Cap(30_000, burst_us=5_000)
    assert applied({"class": "deadline"}).deadline is None  # admission refuses it
    assert applied({}) == NO_SETTINGS


def test_what_settings_give_of_a_task_is_all_named() -> None:
    """Rules that change, and processes that ask for themselves, put back what is named."""
    said = {"class": "batch", "weight": "7", "cap": "30", "burst": "5ms", "deadline": "1ms/10ms", "p99": "5ms",
            "group": "g", "timeslice": "2ms"}  # fmt: skip
    assert said.keys() == {key for key, row in SETTINGS.items() if row.changes is Scope.SHARE}
    task = applied(said)
    assert {field.name for field in fields(Task) if getattr(task, field.name) != getattr(TASK, field.name)} - {
        "key", "command"
    } == set(GIVEN)  # fmt: skip


@pytest.mark.parametrize("settings", [{"burst": "5ms"}, {"cap": "1", "burst": "5ms"}, {"cap": "max", "burst": "5ms"}])
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="burst=5ms: "):
        parse_settings(settings)
    with pytest.raises(UsageError, match="no setting 'x'"):
        parse_settings({"x": "", **settings})


@pytest.mark.parametrize(
    ("weaker", "stronger", "together"),
    [
        ({"class": "batch", "weight": "5"}, {"weight": "6"}, {"class": "batch", "weight": "6"}),
        ({"class": "batch"}, {"deadline": "10ms/20ms"}, {"deadline": "10ms/20ms"}),
        ({"deadline": "10ms/20ms"}, {"class": "batch"}, {"class": "batch"}),
        ({"deadline": "10ms/20ms"}, {"class": "deadline"}, {"deadline": "10ms/20ms", "class": "deadline"}),
        ({"class": "batch"}, {"deadline": "none"}, {"class": "batch", "deadline": "none"}),
        ({"cap": "30", "burst": "5ms"}, {"cap": "1"}, {"cap": "1"}),
        ({"cap": "30", "burst": "5ms"}, {"cap": "9", "burst": "1ms"}, {"cap": "9", "burst": "1ms"}),
    ],
)
def test_stronger_settings_take_along_what_belongs_to_them(
    weaker: dict[str, str], stronger: dict[str, str], together: dict[str, str]
) -> None:
    assert override(weaker, stronger) == together
    parse_settings(override(weaker, stronger))


KEYS = list(SETTINGS)
NUMBERS = st.from_regex(r"[0-9]{1,12}(\.[0-9]{1,3})?( ?(us|ms|s|%))?(/[0-9]{1,9}(us|ms|s))?", fullmatch=True)
WORDS = st.sampled_from(["none", "max", "auto", "batch", "deadline", "latency", "low", "30000 100000", "5ms/20ms"])


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=9), st.text() | NUMBERS | WORDS))
def test_any_mapping_is_taken_or_refused_in_one_line(settings: dict[str, str]) -> None:
    refusal, changes = "", []
    try:
        changes = parse_settings(settings)
    except UsageError as error:
        refusal = str(error)
    assert refusal == "" or refusal.isprintable()
    assert len(refusal) < 400
    task = NO_SETTINGS
    for change in changes:
        if isinstance(change, TaskChange):
            task = change.change(task)
    assert (task.task_class is TaskClass.DEADLINE) or task.deadline is None
