"""Views that carry their meaning: every field says what it is, and what older versions know still holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from runlist import wire
from runlist.daemon.tasks.managed import Count
from runlist.model import Usage
from runlist.views.columns import GPU_COLUMNS, chosen
from runlist.views.fields import Kind, fields
from runlist.views.layout import fit, lines
from runlist.views.structs import ClientView, DaemonView, GpuView, Measured, TaskView, WorkloadView
from tests.fixtures.daemon import ROOT
from tests.fixtures.fake_daemon import gpu_view, status, view

VIEWS = (TaskView, ClientView, GpuView, WorkloadView, DaemonView)
ALL = [(kind, name) for kind in VIEWS for name in kind.__struct_fields__]
UNITS = {"us": "µs", "ms": "ms", "bytes": "bytes", "percent": "percent", "share": "share"}


def types_of(kind: type[msgspec.Struct], name: str) -> set[Any]:
    hint = get_type_hints(kind)[name]
    return set(get_args(hint) or [hint]) - {NoneType} if not hasattr(hint, "__origin__") else {hint}


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_field_says_what_it_is(kind: type[msgspec.Struct], name: str) -> None:
    field = fields(kind)[name]
    assert field.help
    assert "\n" not in field.help
    assert "|" not in field.help + field.unit  # it goes into a table
    number = types_of(kind, name) <= {int, float, bool}
    assert number or field.kind is Kind.LABEL
    last = name.rpartition("_")[2]
    if last in UNITS:
        assert field.unit == UNITS[last]
    if field.kind is Kind.COUNTER and kind is not DaemonView:
        assert field.now in ("", *fields(kind))


def test_no_two_fields_of_a_name_mean_another_thing() -> None:
    for name in fields(TaskView).keys() & fields(GpuView).keys() & fields(Measured).keys():
        assert fields(TaskView)[name] == fields(GpuView)[name]


def test_all_that_is_counted_is_told() -> None:
    counted = [field.of or name for name, field in fields(Measured).items() if field.kind is Kind.COUNTER]
    usage = list(Usage.__struct_fields__)
    assert sorted(counted) == sorted([*usage, "worked_s", *Count])


def test_the_guide_says_the_same() -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "make_guide", "--check"], check=True)


# -- other versions --------------------------------------------------------------------------------

OLD_TASK: dict[str, Any] = {
    "pid": 16562, "gpu": "GPU-cdf5e67f", "task_class": "latency", "command": "python -m x", "user": 0,
    "group": "job 16554", "weight": 100, "cap_percent": None, "budget_us": None, "period_us": None,
    "target_p99_us": 20000.0, "p99_us": 4575.223, "segment": None, "timeslice_us": 1000000, "enabled": True,
    "suspended": False, "policy": "priority", "rule": "", "why": "", "usage_source": "switch log", "share_1s": 0.0345,
    "share_60s": 0.0824, "history": [0.2246], "turns_per_s": 0.0, "memory_bytes": 12582912, "groups": 4, "channels": 20,
    "corrections": 0, "discovery_ms": 42.614, "attach_ms": 51.72, "memory_limit_bytes": 2147483648,
    "memory_overhead_bytes": 10485760, "enforcement": "memory, queries", "cap_by": "", "reached_by": "own right",
}  # fmt: skip
OLD_STATUS: dict[str, Any] = {
    "type": "DaemonStatus", "pid": 7, "version": "0.3.0", "driver": "nvidia", "policy": "priority",
    "policy_options": {}, "private": False, "keeper_pid": 8, "tasks": 1, "rules": "", "waiting": [],
    "others_waiting": 0, "troubles": [],
}  # fmt: skip


def test_the_answers_of_version_0_3_are_understood() -> None:
    decoder = msgspec.json.Decoder(wire.Answer)
    (task,) = decoder.decode(json.dumps({"type": "Tasks", "tasks": [OLD_TASK], "notes": []})).tasks
    assert {name: getattr(task, name) for name in OLD_TASK} == OLD_TASK
    assert (task.command_line, task.switches, task.gpu_seconds_held) == ("", 0, 0.0)
    assert decoder.decode(json.dumps(OLD_STATUS)).gpus == []


def test_version_0_3_finds_all_that_it_knows() -> None:
    """It passes over what it does not know, and needs the rest."""
    assert json.loads(msgspec.json.encode(view())).keys() >= OLD_TASK.keys()
    assert json.loads(wire.encode(status())[4:]).keys() >= OLD_STATUS.keys()


# -- GPUs as a table -------------------------------------------------------------------------------


def test_gpus_as_a_table() -> None:
    columns = chosen(GPU_COLUMNS, [gpu_view()])
    header, row = lines(fit(columns, [gpu_view()]), [gpu_view()])
    assert header.split() == [
        "GPU", "POLICY", "TASKS", "SHARE", "MINUTE", "MEMORY", "SIZE", "HELD", "WORKED", "SWITCHES", "SUSPENDED",
        "SOURCE",
    ]  # fmt: skip
    assert re.split(r" {2,}", row) == [
        "GPU-4e3db026-c5f4", "priority", "2", "25.0 %", "50.0 %", "3.0 GiB", "140.0 GiB", "90.0 s", "60.1 s", "1234",
        "7", "switch log",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "title", "text"),
    [
        ({"records_lost": 3}, "LOST", "3"),
        ({"memory_refusals": 4}, "REFUSED", "4"),
        ({"slices_put_back": 5}, "FIXED", "5"),
        ({"memory_size_bytes": None}, "SIZE", "-"),
        ({"usage_source": ""}, "HELD", "-"),
        ({"gives_way": "switch", "switches_share": 0.028}, "GIVES WAY", "switch, switches 3 %"),
        ({"gives_way": "request", "switches_share": 0.0}, "GIVES WAY", "request, switches 0 %"),
        (
            {"gives_way": "slice", "gives_way_slice_us": 1523, "switches_share": 0.091},
            "GIVES WAY",
            "slice 1.5 ms, switches 9 %",
        ),
        ({"gives_way": "of a later version"}, "GIVES WAY", "of a later version"),
    ],
)
def test_columns_of_gpus(values: dict[str, object], title: str, text: str) -> None:
    (column,) = (column for column in chosen(GPU_COLUMNS, [gpu_view(**values)]) if column.title == title)
    assert column.text(gpu_view(**values)) == text
