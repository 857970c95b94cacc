"""From a look at the daemon to families of metrics, as Prometheus' own library has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector

from runlist.integrations.exporter import names
from runlist.integrations.exporter.dialects import Dialect
from runlist.integrations.exporter.look import Look
from runlist.integrations.exporter.names import Extra, Metric
from runlist.integrations.exporter.workloads import SERIES, Row, Workloads, clean, limits_held, task_labels
from runlist.integrations.exporter.writer import OPENMETRICS, TEXT, write
from runlist.version import __version__
from runlist.views.fields import Kind
from runlist.views.structs import DaemonView, GpuView, TaskView

_SERIES_OF_TASK = len(names.TASKS) + 1


def written(families: Iterable[Family], *, openmetrics: bool) -> tuple[str, bytes]:
    """Content type and text."""
    return OPENMETRICS if openmetrics else TEXT, write(families, openmetrics=openmetrics)


class Metrics:
    """Makes families of looks. At most `max_series` are of workloads and, with `per_process`, of processes."""

    def __init__(self, max_series: int, *, per_process: bool = False, dialects: Sequence[Dialect] = ()) -> None:
        self._max_series = max_series
        self._per_process = per_process
        self._dialects = dialects
        self._workloads = Workloads(max(1, max_series // SERIES))
        self._process = ProcessCollector(registry=None)

    def families(self, seen: Look, dropped: int = 0) -> list[Family]:
        """All families of a look. `dropped` counts connections."""
        made = [_extra(names.UP, [({}, float(seen.status is not None))])]
        if seen.status is not None:
            made += self._of_daemon(seen.status, seen)
        made += [
            _extra(names.BUILD, [({"version": __version__}, 1.0)]),
            _extra(names.LOOK_SECONDS, [({}, seen.seconds)]),
            _extra(names.DROPPED, [({}, float(dropped))]),
            *self._process.collect(),
        ]
        return [family for family in made if family.samples]

    def _of_daemon(self, status: DaemonView, seen: Look) -> Iterator[Family]:
        yield _extra(
            names.DAEMON_INFO,
            [({"version": status.version, "policy": clean(status.policy), "device": status.driver}, 1.0)],
        )
        yield from _families(names.DAEMON, [({}, status)])
        yield _extra(names.WAITING, [({}, float(len(status.waiting) + status.others_waiting))])
        yield _extra(names.TROUBLES, [({}, float(len(status.troubles)))])
        yield _extra(names.GPU_INFO, [(_gpu_info(gpu), 1.0) for gpu in status.gpus])
        yield from _families(names.GPUS, [({"gpu": clean(gpu.gpu)}, gpu) for gpu in status.gpus])
        rows = self._workloads.rows(seen.workloads, seen.tasks, (status.pid, status.started_s))
        yield from _of_workloads(rows)
        yield _extra(names.WORKLOADS_FOLDED, [({}, float(self._workloads.folded))])
        if self._per_process:
            room = max(0, self._max_series - len(rows) * SERIES) // _SERIES_OF_TASK
            yield from _of_tasks(seen.tasks[:room])
            yield _extra(names.TASKS_LEFT_OUT, [({}, float(len(seen.tasks[room:])))])
        for dialect in self._dialects:
            yield from dialect.families(status.gpus, rows)


def _gpu_info(gpu: GpuView) -> dict[str, str]:
    told = {
        "gpu": gpu.gpu, "driver": gpu.driver, "policy": gpu.policy, "usage_source": gpu.usage_source,
        "gives_way": gpu.gives_way,
    }  # fmt: skip
    return {name: clean(value) for name, value in told.items() if value}


def _of_workloads(rows: Sequence[Row]) -> Iterator[Family]:
    for metric in names.WORKLOAD_COUNTERS:
        family = _family(metric)
        for row in rows:
            if metric.field in row.counters:
                family.add_sample(metric.name, row.labels, row.counters[metric.field] * metric.factor)
        yield family
    living = [row for row in rows if row.tasks]
    for metric in names.WORKLOAD_GAUGES:
        family = _family(metric)
        for row in living:
            if (value := row.gauge(metric)) is not None:
                family.add_sample(metric.name, row.labels, value)
        yield family
    counted: list[tuple[dict[str, str], float]] = []
    for row in living:
        classes = [task.task_class for task in row.tasks]
        counted += [({**row.labels, "class": one}, float(classes.count(one))) for one in sorted(set(classes))]
    yield _extra(names.WORKLOAD_TASKS, counted)
    yield _extra(names.MEMORY_LIMIT_HELD, limits_held(living))


def _of_tasks(tasks: Sequence[TaskView]) -> Iterator[Family]:
    """By process: nothing of a command's words, which may have secrets in them."""
    labelled = [({**task_labels(task), "pid": str(task.pid)}, task) for task in tasks]
    yield from _families(names.TASKS, labelled)
    yield _extra(
        names.TASK_INFO,
        [
            ({**labels, "class": task.task_class, "policy": clean(task.policy), "share_group": clean(task.group)}, 1.0)
            for labels, task in labelled
        ],
    )


def _families(metrics: Sequence[Metric], views: Sequence[tuple[dict[str, str], Any]]) -> Iterator[Family]:
    for metric in metrics:
        family = _family(metric)
        for labels, view in views:
            if (value := getattr(view, metric.field)) is not None:
                family.add_sample(metric.name, labels, float(value) * metric.factor)
        yield family


def _family(metric: Metric) -> Family:
    return Family(metric.family, metric.help, "counter" if metric.kind is Kind.COUNTER else "gauge")


def _extra(extra: Extra, samples: Iterable[tuple[dict[str, str], float]]) -> Family:
    family = Family(extra.family, extra.help, extra.type)
    for labels, value in samples:
        family.add_sample(extra.name, labels, value)
    return family
