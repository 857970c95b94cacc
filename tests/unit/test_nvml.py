"""NVML's errors in one line, and both forms of its strings."""

from __future__ import annotations

import types

import pynvml
import pytest

from runlist import nvml
from runlist.rm.transport import NvidiaDriver


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


@pytest.mark.parametrize("name", ["NVIDIA H200", b"NVIDIA H200"])
def test_gpus(monkeypatch: pytest.MonkeyPatch, name: str | bytes) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: name)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: types.SimpleNamespace(total=7))
    assert nvml.gpus() == [nvml.GpuInfo(f"GPU-{index}", "NVIDIA H200", 7) for index in range(2)]
