"""Traces in the form of DISB, the benchmark for inference serving: JSON, `{time, tasks: [{id, load, client}]}`.

DISB's own files say which model a task runs, not how long that takes: a table `kernel_us` beside `tasks` gives, by
task id or by the client's `model_name`, the length of a request's kernels (one number, or a list). A task may also
have `class` and `weight`. Otherwise a continuous task is a batch one, a periodic one with a priority above 0 (0 is
DISB's highest) a normal one, and all others are latency tasks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runlist.arrivals import After, AnyLoad, Closed, Listed, Periodic, Poisson
from runlist.errors import UsageError
from runlist.model import TaskClass
from runlist.sim.traces.fields import Fields, read_document
from runlist.sim.workload import TenantSpec, Trace, waits_for_itself


def read(path: Path, seconds: float | None = None) -> Trace:
    """The trace in a file; `seconds` instead of its own. Raises UsageError naming file, and line or field."""
    fields = Fields(read_document(f"trace {path}", path, json.loads), f"trace {path}")
    own_seconds = fields.number("time")
    if not 0.001 <= own_seconds <= 1e6:
        raise fields.fault("time", f"take 0.001 to 1000000 (s), not {own_seconds:g}")
    kernels = Fields(fields.value("kernel_us", {}), f"trace {path}: kernel_us")
    entries = fields.items("tasks")
    tenants = [_tenant(entry, number, kernels, path) for number, entry in enumerate(entries, 1)]
    if not tenants:
        raise fields.fault("tasks", "give at least one")
    _check_ids(tenants, path)
    return Trace(path.stem, seconds or own_seconds, tenants)


def _check_ids(tenants: list[TenantSpec], path: Path) -> None:
    ids = Counter(tenant.name for tenant in tenants)
    for tenant in tenants:
        if ids[tenant.name] > 1:
            raise UsageError(f"trace {path}: two tasks have the id {tenant.name}")
        if isinstance(tenant.load, After) and (unknown := set(tenant.load.names) - ids.keys()):
            raise UsageError(f"trace {path}: task {tenant.name}: prev_task_ids: no task {', '.join(sorted(unknown))}")
    if name := waits_for_itself(tenants):
        raise UsageError(f"trace {path}: task {name}: prev_task_ids: it comes after itself, and so never")


def _tenant(entry: object, number: int, kernels: Fields, path: Path) -> TenantSpec:
    fields = Fields(entry, f"trace {path}: task {number}")
    client = fields.table("client", {})
    name = fields.text("id", None) or client.text("name", None) or f"task-{number}"
    fields.where = f"trace {path}: task {name}"
    load_fields = fields.table("load") if fields.has("load") else fields.table("strategy")  # its name of old
    priority = load_fields.number("priority", 0.0)
    load = load_of(load_fields)
    default = TaskClass.BATCH if isinstance(load, Closed) else TaskClass.NORMAL if priority > 0 else TaskClass.LATENCY
    word = fields.text("class", default.value)
    if word not in ("latency", "normal", "batch"):
        raise fields.fault("class", f"take latency, normal or batch, not {word}")
    model = client.text("model_name", "")
    lengths = _lengths(name, model, kernels, fields.where)
    try:
        return TenantSpec(
            name=name, task_class=TaskClass(word), weight=fields.whole("weight", 100), load=load, kernel_us=lengths
        )
    except ValueError as error:
        raise UsageError(f"{fields.where}: {error}") from None


def _lengths(name: str, model: str, kernels: Fields, where: str) -> tuple[float, ...]:
    key = next((key for key in (name, model) if kernels.has(key)), None)
    if key is None:
        wanted = f'"{name}"' + (f' or "{model}"' if model else "")
        raise UsageError(f"{where}: kernel_us has no length for it: add {wanted}, in µs")
    value: Any = kernels.value(key)
    kernels.put_back(key, value)  # a model may serve several tasks
    here = Fields({key: value}, kernels.where)
    return here.numbers(key) if isinstance(value, list) else (here.number(key),)


def load_of(fields: Fields) -> AnyLoad:
    """The table `load` of a task. Raises UsageError."""
    kind = fields.text("type")
    readers: dict[str, Callable[[], AnyLoad]] = {
        "continuous": Closed,
        "periodic": lambda: Periodic(fields.number("frequency")),
        "poisson": lambda: Poisson(fields.number("frequency")),
        "trace": lambda: Listed(tuple(time / 1e3 for time in fields.numbers("trace"))),
        "dependent": lambda: After(tuple(map(str, fields.items("prev_task_ids")))),
    }
    if kind not in readers:
        raise fields.fault("type", f"take {', '.join(readers)}, not {kind}")
    try:
        return readers[kind]()
    except ValueError as error:
        raise UsageError(f"{fields.where}: {error}") from None
