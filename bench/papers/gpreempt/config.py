"""Workloads as files, in the form of DISB: JSON, `{time, tasks: [{id, load, client}]}`.

`client` names the program (`model_name`), and says by `priority` whose request comes first: 0 is latency-critical, all
else best effort. The loads are read as the simulator reads them. What is not known here is refused, with the name of
the file and of the field.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench.papers.common.task import Task
from bench.papers.gpreempt.bursty import Bursty
from bench.papers.gpreempt.catalogue import PROGRAMS
from runlist.arrivals import After, AnyLoad, Closed, Listed
from runlist.errors import UsageError
from runlist.sim.traces.disb import load_of
from runlist.sim.traces.fields import Fields, read_document

FOLDER = Path(__file__).parent / "workloads"
PUBLISHED = ("A", "B", "C", "D", "E", "REAL", "Y", "Z")
MICRO = ("B0", "B1", "B2", "B3", "B4", "R")

_DISB_CLIENT = ("type", "name", "batch_size")
"""Fields of DISB's that say nothing here."""


@dataclass(frozen=True)
class Workload:
    """Programs, and the load of each; `note` is what was chosen where nothing is published."""

    name: str
    seconds: float
    tasks: tuple[Task, ...]
    note: str = ""

    @property
    def urgent(self) -> tuple[Task, ...]:
        """The latency-critical ones."""
        return tuple(task for task in self.tasks if task.urgent)

    @property
    def best_effort(self) -> tuple[Task, ...]:
        """The others."""
        return tuple(task for task in self.tasks if not task.urgent)


def named(name: str) -> Workload:
    """One of ours, or that of a file. Raises UsageError."""
    ours = FOLDER / f"{name}.json"
    if ours.is_file():
        return read(ours)
    if name.endswith(".json"):
        return read(Path(name))
    raise UsageError(f"no workload {name!r}: take {', '.join((*PUBLISHED, *MICRO))}, or a file of DISB's form (.json)")


def read(path: Path) -> Workload:
    """The workload of a file. Raises UsageError naming file, and line or field."""
    where = f"workload {path}"
    fields = Fields(read_document(where, path, json.loads), where)
    seconds = fields.number("time")
    if not 0.1 <= seconds <= 3600:
        raise fields.fault("time", f"take 0.1 to 3600 (s), not {seconds:g}")
    note = fields.text("note", "")
    fields.value("kernel_us", None)  # the simulator's
    entries = fields.items("tasks")
    fields.done()
    tasks = tuple(_task(entry, number, where) for number, entry in enumerate(entries, 1))
    if not any(task.urgent for task in tasks):
        raise fields.fault("tasks", "give at least one whose priority is 0")
    _check_ids(tasks, where)
    return Workload(path.stem, seconds, tasks, note)


def _check_ids(tasks: tuple[Task, ...], where: str) -> None:
    ids = Counter(task.name for task in tasks)
    if twice := [name for name, count in ids.items() if count > 1]:
        raise UsageError(f"{where}: two tasks have the id {twice[0]}")
    for task in tasks:
        if isinstance(task.load, After) and (unknown := set(task.load.names) - ids.keys()):
            raise UsageError(f"{where}: task {task.name}: prev_task_ids: no task {', '.join(sorted(unknown))}")


def _task(entry: object, number: int, where: str) -> Task:
    fields = Fields(entry, f"{where}: task {number}")
    name = fields.text("id")
    fields.where = f"{where}: task {name}"
    if not name or len(name) > 60 or not name.replace("-", "").replace("_", "").isalnum():
        raise fields.fault("id", "take letters, digits, - and _")
    client = fields.table("client")
    program = client.text("model_name")
    if program not in PROGRAMS:
        raise client.fault("model_name", f"no program {program!r}: take {', '.join(PROGRAMS)}")
    priority = client.whole("priority", None)
    for ignored in _DISB_CLIENT:
        client.value(ignored, None)
    client.done()
    load_fields = fields.table("load")
    load_priority = load_fields.whole("priority", None)
    priority = load_priority if priority is None else priority
    load = Bursty.of(load_fields) if load_fields.peek("type") == "bursty" else load_of(load_fields)
    load_fields.done()
    fields.done()
    urgent = not isinstance(load, Closed) if priority is None else priority == 0
    if priority is not None and not 0 <= priority <= 10:
        raise client.fault("priority", f"take 0 (latency-critical) to 10, not {priority}")
    return Task(name, program, urgent, load.listed() if isinstance(load, Bursty) else load)


def rate_of(load: AnyLoad) -> float | None:
    """Requests a second that it asks for; None where it takes what it gets."""
    if isinstance(load, Closed | After):
        return None
    if isinstance(load, Listed):
        return len(load.at_s) / max(load.at_s[-1], 1e-9)
    return load.rate if isinstance(load.rate, float) else load.rate[0][1]
