"""Workloads for Prometheus: the labels of each, its counters, and the gauges of its tasks that live."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from runlist.integrations.exporter.names import RENAMED, WORKLOAD_COUNTERS, WORKLOAD_GAUGES, Metric, Sum
from runlist.views.columns import user_name
from runlist.views.structs import TaskView, WorkloadView

Labels = dict[str, str]
_Key = tuple[tuple[str, str], ...]
_NAME = re.compile(r"[a-z_]{1,32}")
_LONGEST_VALUE = 253
_KEPT = 4096  # labels of workloads

FOLDED: Mapping[str, str] = {"folded": "true"}


def clean(value: str) -> str:
    """A label's value: bounded, and text whatever it was."""
    return value[:_LONGEST_VALUE].encode(errors="replace").decode()


def labels_of(gpu: str, user: int | None, container: str, labels: Mapping[str, str]) -> Labels:
    """The labels of a workload, not to be changed; those without a value are left out."""
    return _labels_of(gpu, user, container, tuple(labels.items()))


@lru_cache(_KEPT)
def _labels_of(gpu: str, user: int | None, container: str, labels: tuple[tuple[str, str], ...]) -> Labels:
    told = {"gpu": clean(gpu), "user": "" if user is None else clean(user_name(user))}
    if not labels:
        told["container_id"] = clean(container[:12])
    for name, value in labels:
        if _NAME.fullmatch(name):
            told[RENAMED.get(name, f"label_{name}")] = clean(value)
    return {name: value for name, value in sorted(told.items()) if value}


def task_labels(task: TaskView) -> Labels:
    """The labels of the workload that a task belongs to."""
    return labels_of(task.gpu, task.user, task.container, task.labels)


@dataclass(slots=True)
class Row:
    """A workload on a GPU, or those that are folded there: counters by field, and tasks that live."""

    labels: Labels
    counters: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tasks: list[TaskView] = field(default_factory=list)

    def add(self, other: Row) -> None:
        """Take another in."""
        for name, value in other.counters.items():
            self.counters[name] += value
        self.tasks += other.tasks

    def gauge(self, metric: Metric) -> float | None:
        """The value of a gauge, of all tasks that have one."""
        values = [(task.group, value) for task in self.tasks if (value := getattr(task, metric.field)) is not None]
        if not values:
            return None
        numbers = [float(value) for _, value in values]
        match metric.sum:
            case Sum.LARGEST:
                whole = max(numbers)
            case Sum.SMALLEST:
                whole = min(numbers)
            case Sum.BY_GROUP:
                most: dict[str, float] = {}
                for index, (group, value) in enumerate(values):
                    name = group or str(index)
                    most[name] = max(most.get(name, 0.0), float(value))
                whole = sum(most.values())
            case _:
                whole = sum(numbers)
        return whole * metric.factor


SERIES = len(WORKLOAD_COUNTERS) + len(WORKLOAD_GAUGES) + 3
"""Series of a workload whose tasks are of two classes."""


def limits_held(rows: Iterable[Row]) -> Iterator[tuple[Labels, float]]:
    """How full the fullest memory limit of each row is. A group's is shared by tasks of several rows, as containers of
    a pod are.
    """
    rows = list(rows)
    held: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        for task in row.tasks:
            held[_sharing(task)] += task.memory_bytes or 0
    for row in rows:
        parts = [held[_sharing(task)] / task.memory_limit_bytes for task in row.tasks if task.memory_limit_bytes]
        if parts:
            yield row.labels, max(parts)


def _sharing(task: TaskView) -> tuple[str, str]:
    return task.gpu, task.group or str(task.pid)


class Workloads:
    """The rows of each look at the daemon, at most `most` of them besides those that stand for the rest.

    Which lack room are those that ended first, and then those that came last. What was once counted in a row for the
    rest stays in it: no counter goes down. All begins anew with another daemon.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._moved: dict[_Key, Mapping[str, float]] = {}  # what the rest has of each workload
        self._daemon: object = None
        self.folded = 0

    def rows(self, workloads: Sequence[WorkloadView], tasks: Iterable[TaskView], daemon: object) -> list[Row]:
        """The rows. `daemon` tells one from another that was started later."""
        if daemon != self._daemon:
            self._daemon = daemon
            self._moved.clear()
        rests: dict[str, Row] = {}
        rows: dict[_Key, Row] = {}
        for view in workloads:
            if view.folded:
                self._rest(rests, view.gpu).add(_row({}, view))
                continue
            labels = labels_of(view.gpu, view.user, view.container, view.labels)
            rows.setdefault(_key(labels), Row(labels)).add(_row(labels, view))
        for task in tasks:
            labels = task_labels(task)
            rows.setdefault(_key(labels), Row(labels)).tasks.append(task)
        self._moved = {key: moved for key, moved in self._moved.items() if key in rows}
        shown = []
        for index, (key, row) in enumerate(_by_need(rows)):
            if index >= self._most:
                self._moved[key] = dict(row.counters)
                self._rest(rests, row.labels.get("gpu", "")).tasks += row.tasks
            else:
                shown.append((key, row))
        self.folded = len(rows) - len(shown)
        for key, moved in self._moved.items():
            rest = self._rest(rests, rows[key].labels.get("gpu", ""))
            for name, value in moved.items():
                rest.counters[name] += value
        for key, row in shown:
            for name, value in self._moved.get(key, {}).items():
                row.counters[name] -= value
        return [*(row for _, row in shown), *rests.values()]

    @staticmethod
    def _rest(rests: dict[str, Row], gpu: str) -> Row:
        return rests.setdefault(gpu, Row({"gpu": gpu, **FOLDED}))


def _key(labels: Labels) -> _Key:
    return tuple(labels.items())  # in the order of their names


def _row(labels: Labels, view: WorkloadView) -> Row:
    row = Row(labels)
    row.counters.update({metric.field: getattr(view, metric.field) for metric in WORKLOAD_COUNTERS})
    return row


def _by_need(rows: Mapping[_Key, Row]) -> list[tuple[_Key, Row]]:
    """Those with tasks first, the longest known before others; then those whose tasks ended last."""
    items = list(rows.items())
    return [item for item in items if item[1].tasks] + [item for item in reversed(items) if not item[1].tasks]
