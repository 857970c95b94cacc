"""A public cluster trace: Alibaba PAI's GPU cluster of 2020 (cluster-trace-gpu-v2020), `pai_task_table.csv` or
`pai_instance_table.csv`.

Used of the task table are job_name, task_name, inst_num, start_time, end_time (s), plan_gpu (percent of a GPU, for each
instance) and gpu_type; of the instance table job_name, task_name, inst_name, start_time and end_time, while plan_gpu
and gpu_type come from the `pai_task_table.csv` beside it. The published files have no header line; one is understood.

Each instance becomes a batch tenant that is there from its start to its end: `plan_gpu` percent is its weight and,
under 100, its cap; one of more than 100 becomes a tenant per GPU. What a job does within its time is not in the trace:
it is taken to be as busy as it may be. Rows that ask for no GPU, or do not say when they began, are left out.

Tables are read as streams, twice: for when the trace begins, and for what lies in the part that is simulated.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from runlist.arrivals import Closed
from runlist.errors import UsageError
from runlist.model import Cap, TaskClass
from runlist.sim.workload import TenantSpec, Trace
from runlist.text import counted
from runlist.units import parse_number

TASK_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
INSTANCE_COLUMNS = (
    "job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time", "machine",
)  # fmt: skip
TASK_TABLE = "pai_task_table.csv"

DEFAULT_SECONDS = 10.0
DEFAULT_COMPRESS = 60.0
MAX_TENANTS = 100_000
TENANTS_PER_GPU = 32

_KERNEL_US = (3_100.0,) * 4
_GAP_US = 400.0
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: its fields by column, and how errors call it."""

    fields: dict[str, str]
    where: str

    def number(self, column: str) -> float | None:
        """A number, None where the field is empty. Raises UsageError."""
        text = self.fields.get(column, "").strip()
        if not text:
            return None
        value = parse_number(text)
        if value is None:
            raise UsageError(f"{self.where}: {column}: {text[:40]!r} is not a number")
        return value


def read(path: Path, seconds: float | None = None, *, compress: float = DEFAULT_COMPRESS, skip: float = 0.0) -> Trace:
    """A part of the trace: what happens from `skip` seconds after its first start, `compress` seconds of it in one
    simulated. Raises UsageError naming file, line and column.
    """
    lasts = seconds or DEFAULT_SECONDS
    starts = (start for row in _rows(path) if (start := row.number("start_time")) is not None)
    first = min(starts, default=None)
    if first is None:
        raise UsageError(f"trace {path}: no row has a start_time")
    begin = first + skip
    window = _Window(begin, begin + lasts * compress, compress)
    tenants, left_out = window.tenants(path)
    if not tenants:
        raise UsageError(f"trace {path}: nobody wants a GPU in this part of it: take another with --skip or --compress")
    tenants.sort(key=lambda tenant: tenant.start_s)
    found = counted(len(tenants), "tenant")
    notes = [f"{path.name}: {compress:g} s of the trace in one, from {skip:g} s after its begin: {found}"]
    if left_out:
        notes.append(f"{path.name}: {counted(left_out, 'row')} left out, for want of times or a GPU")
    return Trace(path.stem, lasts, tenants, tenants_per_gpu=TENANTS_PER_GPU, notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class _Window:
    """The part of the trace that is simulated, in its own seconds."""

    begin: float
    end: float
    compress: float

    def tenants(self, path: Path) -> tuple[list[TenantSpec], int]:
        """The tenants of this part, and how many of its rows are none."""
        tenants: list[TenantSpec] = []
        left_out = 0
        for row, plan, gpu_type in self._planned(path):
            start, end = row.number("start_time"), row.number("end_time")
            if start is None or not plan or plan < 0 or (end is not None and end <= start):
                left_out += 1
                continue
            instances = max(1, round(row.number("inst_num") or 1))
            parts = math.ceil(plan / 100)
            if len(tenants) + instances * parts > MAX_TENANTS:
                raise UsageError(
                    f"{row.where}: more than {MAX_TENANTS} tenants: take less with --seconds or --compress"
                )
            for index in range(instances * parts):
                tenants.append(self._tenant(row, len(tenants), index, plan / parts, gpu_type, start, end))
        return tenants, left_out

    def _planned(self, path: Path) -> Iterator[tuple[Row, float | None, str]]:
        """Rows that touch this part, with the GPU that they plan for; rows without times come, too."""
        if "inst_name" not in _columns(path):
            for row in _rows(path):
                if self._touches(row):
                    yield row, row.number("plan_gpu"), row.fields.get("gpu_type", "")
            return
        rows = [row for row in _rows(path) if self._touches(row)]
        wanted = {_task_of(row) for row in rows}
        beside = path.parent / TASK_TABLE
        if not beside.is_file():
            raise UsageError(f"trace {path}: it has no plan_gpu: put {TASK_TABLE} beside it")
        plans = {
            _task_of(row): (row.number("plan_gpu"), row.fields.get("gpu_type", ""))
            for row in _rows(beside)
            if _task_of(row) in wanted
        }
        for row in rows:
            plan, gpu_type = plans.get(_task_of(row), (None, ""))
            yield row, plan, gpu_type

    def _touches(self, row: Row) -> bool:
        start, end = row.number("start_time"), row.number("end_time")
        return start is not None and start < self.end and (end is None or end > self.begin)

    def _tenant(
        self, row: Row, number: int, index: int, percent: float, gpu_type: str, start: float, end: float | None
    ) -> TenantSpec:
        begins = max(0.0, start - self.begin) / self.compress
        ends = None if end is None else (end - self.begin) / self.compress
        words = [row.fields.get(column, "")[:12] for column in ("job_name", "task_name")]
        label = "/".join([*(word for word in words if word.isprintable() and word), f"{number}.{index}"])
        try:
            return TenantSpec(
                name=f"{label} ({gpu_type})" if gpu_type.isprintable() and gpu_type else label,
                task_class=TaskClass.BATCH,
                weight=max(1, round(percent)),
                cap=Cap.of_percent(max(1.0, percent)) if percent < 100 else None,
                load=Closed(),
                kernel_us=_KERNEL_US,
                gap_us=_GAP_US,
                start_s=begins,
                end_s=ends,
                demand=percent / 100,
            )
        except ValueError as error:
            raise UsageError(f"{row.where}: {error}") from None


def _task_of(row: Row) -> tuple[str, str]:
    return row.fields.get("job_name", ""), row.fields.get("task_name", "")


def _columns(path: Path) -> tuple[str, ...]:
    """The columns of a table, by its header line or by how many there are. Raises UsageError."""
    first = next(_lines(path), None)
    if first is None:
        raise UsageError(f"trace {path}: the file is empty")
    words = tuple(word.strip() for word in first[1])
    if "start_time" in words:
        return words
    for columns in (TASK_COLUMNS, INSTANCE_COLUMNS):
        if len(words) == len(columns):
            return columns
    raise UsageError(
        f"trace {path}: line {first[0]}: {len(words)} columns: pai_task_table has {len(TASK_COLUMNS)}, "
        f"pai_instance_table {len(INSTANCE_COLUMNS)}; others need a header line with start_time"
    )


def _rows(path: Path) -> Iterator[Row]:
    columns = _columns(path)
    for number, words in _lines(path):
        if not words or "start_time" in (stripped := [word.strip() for word in words]):
            continue
        if len(words) != len(columns):
            raise UsageError(f"trace {path}: line {number}: {len(words)} columns, not {len(columns)}")
        yield Row(dict(zip(columns, stripped, strict=True)), f"trace {path}: line {number}")


def _whole_lines(path: Path, file: TextIO) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), ""), 1):
        if len(line) > _LONGEST_LINE:
            raise UsageError(f"trace {path}: line {number}: longer than {_LONGEST_LINE >> 10} KiB")
        yield line


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            reader = csv.reader(_whole_lines(path, file))
            try:
                for words in reader:
                    yield reader.line_num, words
            except csv.Error as error:
                raise UsageError(f"trace {path}: line {reader.line_num}: {error}") from None
    except OSError as error:
        raise UsageError(f"trace {path}: {error.strerror or error}") from None
