"""NVML's errors in one line, and both forms of its strings."""

from __future__ import annotations

import types
from pathlib import Path

import pynvml
import pytest

from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.rm.transport import NvidiaDriver


def test_a_missing_nvml_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    with pytest.raises(nvml.NvmlError, match="install or load the NVIDIA driver"), nvml.session(NvidiaDriver()):
        pass


def test_nvml_is_shut_down_again_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("init"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("shutdown"))
    with pytest.raises(nvml.NvmlError, match="NVML: "), nvml.session(NvidiaDriver()):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert calls == ["init", "shutdown"]


class Limits:
    """An NVML that has memory limits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set: list[tuple[str, bytes, int, int]] = []
        self.error: int | None = None
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: "GPU-0")
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryLimits_v1", self.take, raising=False)
        monkeypatch.setattr(pynvml, "nvmlDeviceSetMemoryLimits_v1", self.take, raising=False)
        for kind in ("Get", "Set"):
            monkeypatch.setattr(pynvml, f"c_nvml{kind}MemoryLimits_v1_t", types.SimpleNamespace, raising=False)

    def take(self, handle: str, limits: types.SimpleNamespace) -> None:
        if self.error is not None:
            raise pynvml.NVMLError(self.error)
        if hasattr(limits, "hardLimit"):
            self.set.append((handle, limits.nameSpace, limits.softLimit, limits.hardLimit))


def test_limits_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch)
    cgroup = Path("/sys/fs/cgroup/a")
    assert nvml.memory_limits_supported(cgroup)
    nvml.set_memory_limit("GPU-7", cgroup, 8 << 30)
    nvml.set_memory_limit("GPU-7", cgroup, None)
    assert limits.set == [("GPU-7", b"/sys/fs/cgroup/a", 0, 8 << 30), ("GPU-7", b"/sys/fs/cgroup/a", 0, (1 << 64) - 1)]
    for code in (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED):
        limits.error = code
        assert not nvml.memory_limits_supported(cgroup)
    with pytest.raises(nvml.NvmlError, match="NVML: "):
        nvml.set_memory_limit("GPU-7", cgroup, 1)
    monkeypatch.delattr(pynvml, "nvmlDeviceGetMemoryLimits_v1")  # an older nvidia-ml-py
    assert not nvml.memory_limits_supported(cgroup)


@pytest.mark.parametrize("name", ["NVIDIA H200", b"NVIDIA H200"])
def test_gpus(monkeypatch: pytest.MonkeyPatch, name: str | bytes) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: name)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: types.SimpleNamespace(total=7))
    assert nvml.gpus() == [nvml.GpuInfo(f"GPU-{index}", "NVIDIA H200", 7) for index in range(2)]
