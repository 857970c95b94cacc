"""Synthetic traces: TOML with a `[[tenant]]` table per process."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from runlist.arrivals import After, AnyLoad, Closed, Listed, Periodic, Poisson, Rate
from runlist.errors import UsageError
from runlist.model import Cap, Deadline, Task, TaskClass
from runlist.settings.conflicts import conflicts
from runlist.settings.table import NO_SETTINGS, apply_changes, parse_settings
from runlist.sim.traces.fields import Fields, read_document
from runlist.sim.workload import MAX_KERNELS, TenantSpec, Trace, waits_for_itself
from runlist.text import counted

MAX_COUNT = 10_000

_WORDS = ("cap", "burst", "deadline", "p99", "timeslice")
"""What a tenant may say in the words of `runlist set`."""


_SAID = {"class": "class", "deadline": "deadline", "cap": "cap", "p99": "p99", "p99_us": "p99"}
"""Settings that may exclude each other, by what a tenant calls them."""


def read(path: Path, seconds: float | None = None) -> Trace:
    """The trace in a file; `seconds` instead of its own. Raises UsageError naming file, and line or field."""
    fields = Fields(read_document(f"trace {path}", path, tomllib.loads), f"trace {path}")
    fields.text("about", "")
    own_seconds = fields.number("seconds", 10.0)
    gpus = fields.whole("gpus", 1)
    room = fields.whole("tenants_per_gpu", 64)
    tenants: list[TenantSpec] = []
    for number, entry in enumerate(fields.items("tenant"), 1):
        tenants += _tenants(entry, f"trace {path}: tenant {number}")
    fields.done()
    for name, value, least in (("seconds", own_seconds, 0.001), ("gpus", gpus, 1), ("tenants_per_gpu", room, 1)):
        if not least <= value <= 1e6:
            raise fields.fault(name, f"take {least:g} to 1000000, not {value:g}")
    _check_names(tenants, path)
    tenants.sort(key=lambda tenant: tenant.start_s)
    lasts = seconds or own_seconds
    late = sum(tenant.start_s >= lasts for tenant in tenants)
    notes = (f"{counted(late, 'tenant')} would come after the end ({lasts:g} s)",) if late else ()
    return Trace(path.stem, lasts, tenants, gpus, room, notes)


def about(path: Path) -> str:
    """The trace's own description."""
    return str(read_document(f"trace {path}", path, tomllib.loads).get("about", ""))


def _check_names(tenants: list[TenantSpec], path: Path) -> None:
    if not tenants:
        raise UsageError(f"trace {path}: give at least one [[tenant]]")
    names: set[str] = set()
    for tenant in tenants:
        if tenant.name in names:
            raise UsageError(f"trace {path}: two tenants are called {tenant.name}")
        names.add(tenant.name)
    for tenant in tenants:
        if isinstance(tenant.load, After) and (unknown := set(tenant.load.names) - names):
            raise UsageError(f"trace {path}: tenant {tenant.name}: load: no tenant {', '.join(sorted(unknown))}")
    if name := waits_for_itself(tenants):
        raise UsageError(f"trace {path}: tenant {name}: load: it comes after itself, and so never")


def _tenants(entry: object, where: str) -> list[TenantSpec]:
    fields = Fields(entry, where)
    name = fields.text("name")
    fields.where = f"{where} ({name})"
    count = fields.whole("count", 1)
    if not 1 <= count <= MAX_COUNT:
        raise fields.fault("count", f"take 1 to {MAX_COUNT}, not {count}")
    try:
        settings = _settings(fields)
        fields.done()
        return [
            TenantSpec(name=name if count == 1 else f"{name}-{number}", **settings) for number in range(1, count + 1)
        ]
    except ValueError as error:
        raise UsageError(f"{fields.where}: {error}") from None


def _settings(fields: Fields) -> dict[str, Any]:
    said = {setting: str(fields.peek(name)) for name, setting in _SAID.items() if fields.has(name)}
    asked = _asked(fields)
    deadline = _deadline(fields) or asked.deadline
    default_class = TaskClass.NORMAL if deadline is None else TaskClass.DEADLINE
    shares = {
        "deadline": deadline,
        "task_class": _class(fields, default_class),
        "weight": fields.whole("weight", 100),
        "cap": _cap(fields) or asked.cap,
        "target_p99_us": asked.target_p99_us or fields.number("p99_us", None),
    }
    try:
        conflicts(said, replace(NO_SETTINGS, **shares))
    except UsageError as error:
        raise UsageError(f"{fields.where}: {error}") from None
    if fields.peek("false_alarms") and not fields.peek("tells"):
        raise fields.fault("false_alarms", "only a tenant that tells is heard: tells = true")
    return {
        **shares,
        "group": fields.text("group", ""),
        "gpu": fields.whole("gpu", None),
        "load": _load(fields.table("load", {"kind": "closed"})),
        "kernel_us": _kernels(fields),
        "gap_us": fields.number("gap_us", 0.0),
        "step_gap_us": fields.number("step_gap_us", 0.0),
        "host_us": fields.number("host_us", 0.0),
        "wait_every": fields.whole("wait_every", None),
        "tells": fields.flag("tells"),
        "prepare_us": fields.number("prepare_us", 0.0),
        "false_alarms": fields.number("false_alarms", 0.0),
        "start_s": fields.number("start", 0.0),
        "end_s": fields.number("end", None),
        "hint_us": fields.number("hint_us", None),
        "segment": fields.whole("segment", None),
        "timeslice_us": asked.timeslice_us or fields.whole("timeslice_us", None),
    }


def _class(fields: Fields, default: TaskClass) -> TaskClass:
    word = fields.text("class", default.value)
    try:
        return TaskClass(word)
    except ValueError:
        raise fields.fault("class", f"take {', '.join(TaskClass)}, not {word}") from None


def _asked(fields: Fields) -> Task:
    """What a tenant asks for in words, or in a number for which its setting has a unit."""
    words = {name: str(word) for name in _WORDS if (word := fields.word(name)) is not None}
    try:
        return apply_changes(parse_settings(words))
    except UsageError as error:
        raise UsageError(f"{fields.where}: {error}") from None


def _cap(fields: Fields) -> Cap | None:
    """`{quota_us, period_us, burst_us}`."""
    if not fields.has("cap"):
        return None
    table = fields.table("cap")
    cap = Cap(table.whole("quota_us"), table.whole("period_us", 100_000), table.whole("burst_us", 0))
    table.done()
    return cap


def _deadline(fields: Fields) -> Deadline | None:
    if not fields.has("deadline"):
        return None
    table = fields.table("deadline")
    deadline = Deadline(table.whole("budget_us"), table.whole("period_us"))
    table.done()
    return deadline


def _kernels(fields: Fields) -> tuple[float, ...]:
    """`kernel_us` is one length for all `kernels`, or a list with the length of each."""
    if fields.has("kernel_us") and not fields.has("kernels"):
        value = fields.value("kernel_us")
        if isinstance(value, list):
            return Fields({"kernel_us": value}, fields.where).numbers("kernel_us")
        one: float = Fields({"kernel_us": value}, fields.where).number("kernel_us")
        return (one,)
    kernels: int = fields.whole("kernels", 1)
    if not 1 <= kernels <= MAX_KERNELS:
        raise fields.fault("kernels", f"take 1 to {MAX_KERNELS}, not {kernels}")
    length: float = fields.number("kernel_us")
    return (length,) * kernels


def _load(fields: Fields) -> AnyLoad:
    kind = fields.text("kind")
    readers: dict[str, Callable[[], AnyLoad]] = {
        "closed": Closed,
        "periodic": lambda: Periodic(_periodic_rate(fields), _phase(fields)),
        "poisson": lambda: Poisson(_rate(fields)),
        "trace": lambda: Listed(tuple(time / 1e3 for time in fields.numbers("times_ms"))),
        "after": lambda: After(tuple(map(str, fields.items("names")))),
    }
    if kind not in readers:
        raise fields.fault("kind", f"take {', '.join(readers)}, not {kind}")
    load = readers[kind]()
    fields.done()
    return load


def _phase(fields: Fields) -> float | None:
    phase_us = fields.number("phase_us", None)
    return None if phase_us is None else phase_us / 1e6


def _periodic_rate(fields: Fields) -> Rate:
    if not fields.has("period_us"):
        return _rate(fields)
    period_us = fields.number("period_us")
    if fields.has("hz"):
        raise fields.fault("period_us", "hz says how often, too: give one of them")
    if not period_us > 0:
        raise fields.fault("period_us", f"take more than 0, not {period_us:g}")
    return 1e6 / float(period_us)


def _rate(fields: Fields) -> Rate:
    """A number, or a list of `[second, hz]`."""
    value = fields.value("hz")
    if not isinstance(value, list):
        return float(Fields({"hz": value}, fields.where).number("hz"))
    steps = []
    for step in value:
        numbers = Fields({"hz": step}, fields.where).numbers("hz")
        if len(numbers) != 2:
            raise fields.fault("hz", "take a number, or a list of [second, hz]")
        steps.append((numbers[0], numbers[1]))
    return steps
