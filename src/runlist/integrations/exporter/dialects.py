"""Metrics by the names of others, for dashboards that exist: DCGM's exporter, KAI's GPU fractioning, HAMi's monitor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric as Family

from runlist.integrations.exporter.names import WORKLOAD_GAUGES
from runlist.integrations.exporter.workloads import Row
from runlist.views.structs import GpuView

_MIB = float(1 << 20)
_BY_FIELD = {metric.field: metric for metric in WORKLOAD_GAUGES}


@dataclass(frozen=True, slots=True)
class Device:
    """What a GPU is besides its UUID: its number on this machine, None where nobody tells, and its model."""

    index: int | None
    model: str


Devices = Mapping[str, Device]
_Samples = Iterator[tuple[dict[str, str], float]]
_Labels = Callable[[str, Mapping[str, str]], dict[str, str]]
"""Labels of a workload, or of what nobody is known for: GPU and the labels of ours."""


@dataclass(frozen=True, slots=True)
class Name:
    """A gauge of somebody else's. `source` says what it is made of, in words for the documents."""

    name: str
    help: str
    source: str
    values: Callable[[Sequence[GpuView], Sequence[Row], _Labels], _Samples]


def _used(row: Row, field: str) -> float:
    """A gauge of a workload in its base unit; 0 while none of its tasks has any."""
    return row.gauge(_BY_FIELD[field]) or 0.0


def _by_workload(field: str, factor: float) -> Callable[[Sequence[GpuView], Sequence[Row], _Labels], _Samples]:
    """Of each workload with tasks."""

    def values(gpus: Sequence[GpuView], rows: Sequence[Row], labels: _Labels) -> _Samples:
        del gpus
        for row in rows:
            if row.tasks and (value := row.gauge(_BY_FIELD[field])) is not None:
                yield labels(row.labels["gpu"], row.labels), value * factor

    return values


def _and_the_rest(
    field: str, of_gpu: Callable[[GpuView], float | None], factor: float
) -> Callable[[Sequence[GpuView], Sequence[Row], _Labels], _Samples]:
    """Of each workload with tasks, and of all else on its GPU: their sum is the GPU's."""

    def values(gpus: Sequence[GpuView], rows: Sequence[Row], labels: _Labels) -> _Samples:
        for gpu in gpus:
            if (whole := of_gpu(gpu)) is None:
                continue
            left = whole
            for row in rows:
                if row.tasks and row.labels["gpu"] == gpu.gpu:
                    value = _used(row, field)
                    left -= value
                    yield labels(gpu.gpu, row.labels), value * factor
            yield labels(gpu.gpu, {}), max(0.0, left) * factor

    return values


def _by_gpu(
    of_gpu: Callable[[GpuView], float | None], factor: float
) -> Callable[[Sequence[GpuView], Sequence[Row], _Labels], _Samples]:
    def values(gpus: Sequence[GpuView], rows: Sequence[Row], labels: _Labels) -> _Samples:
        del rows
        for gpu in gpus:
            if (value := of_gpu(gpu)) is not None:
                yield labels(gpu.gpu, {}), value * factor

    return values


def _share(gpu: GpuView) -> float:
    return gpu.share_1s


def _memory(gpu: GpuView) -> float | None:
    return gpu.memory_used_bytes


def _free(gpu: GpuView) -> float | None:
    if gpu.memory_size_bytes is None or gpu.memory_used_bytes is None:
        return None
    return float(max(0, gpu.memory_size_bytes - gpu.memory_used_bytes))


_REST = "; a series without a pod has the rest of the GPU"
_DCGM = (
    Name("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", "share of the last second, percent" + _REST,
         _and_the_rest("share_1s", _share, 100.0)),
    Name("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.",
         "share of the last second, 0 to 1" + _REST, _and_the_rest("share_1s", _share, 1.0)),
    Name("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", "memory held, MiB" + _REST,
         _and_the_rest("memory_bytes", _memory, 1 / _MIB)),
    Name("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", "memory that nobody holds, MiB",
         _by_gpu(_free, 1 / _MIB)),
    Name("DCGM_FI_DEV_FB_TOTAL", "Total framebuffer memory (in MiB).", "memory of the GPU, MiB",
         _by_gpu(lambda gpu: gpu.memory_size_bytes, 1 / _MIB)),
)  # fmt: skip
_KAI = (
    Name("gpu_fractioning_gpu_memory_used_bytes", "GPU memory used by a pod (in bytes).", "memory held, bytes",
         _by_workload("memory_bytes", 1.0)),
    Name("gpu_fractioning_gpu_sm_utilization_percent", "SM utilization of a pod (in %).",
         "share of the last second, percent of the GPU", _by_workload("share_1s", 100.0)),
)  # fmt: skip
_HAMI_WORKLOADS = (
    Name("hami_vgpu_memory_used_bytes", "vGPU device memory usage in bytes", "memory held, bytes",
         _by_workload("memory_bytes", 1.0)),
    Name("hami_vgpu_memory_limit_bytes", "vGPU device memory limit in bytes", "memory limit, bytes",
         _by_workload("memory_limit_bytes", 1.0)),
    Name("hami_container_device_utilization_ratio", "Container device SM utilization ratio",
         "share of the last second, percent, as there", _by_workload("share_1s", 100.0)),
)  # fmt: skip
_HAMI_GPUS = (
    Name("hami_host_gpu_memory_used_bytes", "GPU device memory usage in bytes", "memory held, bytes",
         _by_gpu(_memory, 1.0)),
    Name("hami_host_gpu_utilization_ratio", "GPU core utilization ratio (0-100)",
         "share of the last second, percent, as there", _by_gpu(_share, 100.0)),
)  # fmt: skip

NAMES = {"dcgm": _DCGM, "kai": _KAI, "hami": _HAMI_WORKLOADS + _HAMI_GPUS}
"""The names of each dialect."""


class Dialect:
    """The names of somebody else, for the workloads of a look. Workloads that these labels do not tell apart are one:
    their values are added.
    """

    def __init__(self, name: str, devices: Callable[[], Devices]) -> None:
        self._name = name
        self._devices = devices

    def families(self, gpus: Sequence[GpuView], rows: Sequence[Row]) -> Iterator[Family]:
        """Their families."""
        devices = self._devices()
        for name in NAMES[self._name]:
            family = Family(name.name, name.help, "gauge")
            labels = _labels(self._name, devices, of_gpu=name in _HAMI_GPUS)
            added: dict[tuple[tuple[str, str], ...], float] = {}
            for told, value in name.values(gpus, rows, labels):
                key = tuple(told.items())
                added[key] = added.get(key, 0.0) + value
            for key, value in added.items():
                family.add_sample(name.name, dict(key), value)
            yield family


def _labels(dialect: str, devices: Devices, *, of_gpu: bool) -> _Labels:
    def labels(gpu: str, ours: Mapping[str, str]) -> dict[str, str]:
        device = devices.get(gpu, Device(None, ""))
        index, model = "" if device.index is None else str(device.index), device.model
        who = {name: ours.get(name, "") for name in ("namespace", "pod", "container")}
        match dialect:
            case "dcgm":
                told = {"gpu": index, "UUID": gpu, "device": index and f"nvidia{index}", "modelName": model, **who}
            case "kai":
                told = {"namespace": who["namespace"], "pod": who["pod"], "gpu_uuid": gpu, "gpu": index}
            case _ if of_gpu:
                told = {"device_index": index, "device_uuid": gpu, "device_type": model}
            case _:
                told = {**who, "vdevice_index": "0", "device_uuid": gpu}
        return {name: value for name, value in told.items() if value}

    return labels
