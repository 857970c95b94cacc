"""The names of metrics: made of the views' fields, which say what each is, in what unit, and whether it only grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from runlist.views.fields import Kind, fields
from runlist.views.structs import Counted, DaemonView, GpuView, TaskView, WorkloadView

PREFIX = "runlist"

UNITS = {
    "": ("", 1.0),
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "µs": ("seconds", 1e-6),
    "bytes": ("bytes", 1.0),
    "percent": ("ratio", 0.01),
    "share": ("ratio", 1.0),
    "1/s": ("per_second", 1.0),
}
"""Base units of the views' units, and the factors to them."""


class Of(StrEnum):
    """What a metric tells about."""

    WORKLOAD = "workload"
    TASK = "task"
    GPU = "gpu"
    DAEMON = "daemon"


class Sum(StrEnum):
    """How the values of a workload's tasks become one. Tasks of a group share as one: what holds for a group counts
    once.
    """

    SUM = "sum"
    LARGEST = "largest"
    SMALLEST = "smallest"
    BY_GROUP = "sum of groups"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its whole name; its value is a `field` of a view times `factor`."""

    name: str
    of: Of
    field: str
    kind: Kind
    help: str
    factor: float = 1.0
    sum: Sum = Sum.SUM

    @property
    def family(self) -> str:
        """The name without the ending that says that it only grows."""
        return self.name.removesuffix("_total")


_STEMS = {
    "gpu_seconds_held": "gpu_held",
    "gpu_seconds_idle": "gpu_idle",
    "gpu_seconds_worked": "gpu_worked",
    "share_1s": "share",
    "share_60s": "share_minute",
    "turns_per_s": "switches",
    "cap_percent": "cap",
    "sms_percent": "sms_limit",
    "budget_us": "deadline_budget",
    "period_us": "deadline_period",
    "target_p99_us": "p99_target",
    "p99_us": "p99",
    "request_us": "request",
    "timeslice_us": "timeslice",
    "timeslice_set_us": "timeslice_set",
    "memory_bytes": "memory_used",
    "memory_limit_bytes": "memory_limit",
    "memory_overhead_bytes": "memory_overhead",
    "memory_size_bytes": "memory_size",
    "memory_used_bytes": "memory_used",
    "memory_unowned_bytes": "memory_unowned",
    "seconds_waited": "waited",
    "seconds_launching": "launching",
    "gives_way_slice_us": "background_slice",
    "switches_share": "switching",
    "switch_budget_share": "switching_budget",
    "pauses_per_s": "foreground_pauses",
    "started_s": "start_time",
    "suspended": "suspended",
}
"""Names of fields without their units, and by what they are called elsewhere."""

LEFT_OUT = {
    "corrections": "an older name of slices_put_back",
    "history": "a database has the history",
    "discovery_ms": "a fact of the past, in `ps --json`",
    "attach_ms": "a fact of the past, in `ps --json`",
    "room_ms": "a fact of the past, in `ps --json`",
    "timeslice_set_us": "the slice in force is there",
    "memory_refusals": "of a process: its tree's, which would count for each of its processes",
}
"""Fields without a metric, of a task at least, and why."""

_OF_TASKS = {
    "share_1s": Sum.SUM,
    "memory_bytes": Sum.SUM,
    "memory_overhead_bytes": Sum.SUM,
    "memory_limit_bytes": Sum.BY_GROUP,
    "weight": Sum.BY_GROUP,
    "cap_percent": Sum.BY_GROUP,
    "p99_us": Sum.LARGEST,
    "target_p99_us": Sum.SMALLEST,
    "suspended": Sum.SUM,
}
"""Gauges of tasks that say something of a workload, too."""

_WORKLOAD_STEMS = {"suspended": "tasks_suspended"}


def _metric(view: type[msgspec.Struct], name: str, of: Of, sum_: Sum = Sum.SUM, stem: str = "") -> Metric:
    field = fields(view)[name]
    unit, factor = UNITS[field.unit]
    stem = stem or _STEMS.get(name, name)
    if of is Of.GPU:
        stem = stem.removeprefix("gpu_")
    ends = [part for part in (unit, "total" if field.kind is Kind.COUNTER else "") if part]
    return Metric("_".join([PREFIX, of, stem, *ends]), of, name, field.kind, field.help, factor, sum_)


def _numbers(view: type[msgspec.Struct], of: Of) -> Iterator[Metric]:
    for name, field in fields(view).items():
        if field.kind is not Kind.LABEL and not (name in LEFT_OUT and of is Of.TASK):
            yield _metric(view, name, of)


WORKLOAD_COUNTERS = tuple(_numbers(WorkloadView, Of.WORKLOAD))
WORKLOAD_GAUGES = tuple(
    _metric(TaskView, name, Of.WORKLOAD, how, _WORKLOAD_STEMS.get(name, "")) for name, how in _OF_TASKS.items()
)
TASKS = tuple(_numbers(TaskView, Of.TASK))
GPUS = tuple(_numbers(GpuView, Of.GPU))
DAEMON = tuple(_numbers(DaemonView, Of.DAEMON))

assert {metric.field for metric in WORKLOAD_COUNTERS} == {*fields(Counted), "tasks_ended"}


@dataclass(frozen=True, slots=True)
class Extra:
    """A metric that is no field of a view."""

    name: str
    type: str
    help: str

    @property
    def family(self) -> str:
        """The name without its ending."""
        return self.name.removesuffix("_total").removesuffix("_info")


UP = Extra("runlist_up", "gauge", "whether the daemon answered")
BUILD = Extra("runlist_exporter_build_info", "info", "version of this exporter")
LOOK_SECONDS = Extra("runlist_exporter_look_seconds", "gauge", "how long asking the daemon took")
WORKLOADS_FOLDED = Extra(
    "runlist_exporter_workloads_folded", "gauge", "workloads that have no series of their own, for --max-series"
)
TASKS_LEFT_OUT = Extra(
    "runlist_exporter_tasks_left_out", "gauge", "processes that have no series for --per-process, for --max-series"
)
DROPPED = Extra(
    "runlist_exporter_connections_dropped_total", "counter", "connections that were ended so that others found room"
)
DAEMON_INFO = Extra("runlist_daemon_info", "info", "version, policy and device of the daemon")
WAITING = Extra("runlist_daemon_waiting_tasks", "gauge", "tasks and commands that wait for room")
TROUBLES = Extra("runlist_daemon_troubles", "gauge", "lines of trouble in `runlist daemon --status`")
GPU_INFO = Extra(
    "runlist_gpu_info", "info", "driver, policy and usage source of a GPU, and how its background gives way"
)
WORKLOAD_TASKS = Extra("runlist_workload_tasks", "gauge", "tasks that are managed now, by class")
MEMORY_LIMIT_HELD = Extra(
    "runlist_workload_memory_limit_held_ratio",
    "gauge",
    "part of its memory limit that all hold who share it, in other containers, too (largest of its tasks)",
)
TASK_INFO = Extra("runlist_task_info", "info", "class, policy and share group of a process")

EXTRAS = (
    UP, DAEMON_INFO, WAITING, TROUBLES, GPU_INFO, WORKLOAD_TASKS, MEMORY_LIMIT_HELD, TASK_INFO, BUILD, LOOK_SECONDS,
    WORKLOADS_FOLDED, TASKS_LEFT_OUT, DROPPED,
)  # fmt: skip

OWN_LABELS = {
    "gpu": "UUID of the GPU",
    "user": "name of the user that it belongs to, or the number of one without a name",
    "namespace": "label `namespace` of the rule",
    "pod": "label `pod` of the rule",
    "container": "label `container` of the rule: a name",
    "workload": "label `workload` of the rule",
    "unit": "label `unit` of the rule",
    "job_id": "label `job` of the rule: Prometheus keeps `job` for itself",
    "container_id": "first 12 letters of the container's id, where no rule says who it is",
    "folded": "`true` for those without series of their own, together; else absent",
}
"""The labels of workloads. A label that is empty is left out, which is the same to Prometheus."""

RENAMED: Mapping[str, str] = {
    "namespace": "namespace", "pod": "pod", "container": "container", "workload": "workload", "unit": "unit",
    "job": "job_id",
}  # fmt: skip
"""Labels of rules that have a name of their own as Prometheus' labels; others begin with `label_`."""
