"""NVML's errors in one line, and both forms of its strings."""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any

import pynvml
import pytest

from runlist.planes.nvidia import nvml
from runlist.planes.nvidia.census import NvmlCensus
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
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: f"GPU-{index}")
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryLimits_v1", self.take, raising=False)
        monkeypatch.setattr(pynvml, "nvmlDeviceSetMemoryLimits_v1", self.take, raising=False)
        for kind in ("Get", "Set"):
            monkeypatch.setattr(pynvml, f"c_nvml{kind}MemoryLimits_v1_t", types.SimpleNamespace, raising=False)

    def take(self, handle: str, limits: types.SimpleNamespace) -> None:
        if self.error is not None:
            raise pynvml.NVMLError(self.error)
        assert handle in ("GPU-0", "GPU-7")
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


def test_sessions_pass_on_what_they_are_asked_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("init"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("shutdown"))
    limits, cgroup = Limits(monkeypatch), Path("/sys/fs/cgroup/a")
    census = NvmlCensus(NvidiaDriver())
    assert census.limits_memory(cgroup) is True
    limits.error = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert census.limits_memory(cgroup) is False
    for session in (census, nvml.Utilisation(NvidiaDriver(), "GPU-7")):
        calls.clear()
        session.close()
        assert calls == ["shutdown"]


class Processes:
    """An NVML of two GPUs with processes on them, of which the second may be lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed: dict[str, list[tuple[int, int | None]]] = {"GPU-0": [], "GPU-1": []}
        self.error: int | None = None  # of what is asked about the second
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: f"GPU-{index}")
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
        for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
            monkeypatch.setattr(pynvml, name, self.ask)

    def ask(self, gpu: str) -> list[types.SimpleNamespace]:
        if gpu == "GPU-1" and self.error is not None:
            raise pynvml.NVMLError(self.error)
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.listed[gpu]]


def test_a_process_holds_what_all_its_entries_say(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(monkeypatch)
    processes.listed["GPU-0"] = [(7, 100), (8, None), (7, 20)]
    assert nvml.memory_by_pid("GPU-0") == {7: 120, 8: 0}
    processes.error = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(nvml.NvmlError, match="NVML: "):
        nvml.memory_by_pid("GPU-1")


def test_processes_of_all_gpus_but_of_one_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(monkeypatch)
    processes.listed = {"GPU-0": [(7, 1), (8, 1)], "GPU-1": [(8, 1), (9, 1)]}
    assert nvml.compute_pids() == {7, 8, 9}
    processes.error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.compute_pids() == {7, 8}
    processes.error = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(nvml.NvmlError):
        nvml.compute_pids()


def test_without_a_word_on_mps_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes(monkeypatch)
    processes.listed["GPU-1"] = [(9, None)]
    assert nvml.mps_pids("GPU-1") == {9}
    for code in (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED):
        processes.error = code
        assert nvml.mps_pids("GPU-1") == set()
    processes.error = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(nvml.NvmlError):
        nvml.mps_pids("GPU-1")


@pytest.mark.parametrize(("known", "used"), [(True, 5), (False, 7)])
def test_memory_in_use_is_without_the_drivers_own_where_that_is_told(
    monkeypatch: pytest.MonkeyPatch, known: bool, used: int
) -> None:
    def info(handle: str, version: int | None = None) -> types.SimpleNamespace:
        assert handle == "GPU-0"
        if version is None:
            return types.SimpleNamespace(used=7)
        assert version == pynvml.nvmlMemory_v2
        if not known:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return types.SimpleNamespace(used=5)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", info)
    assert nvml.memory_used("GPU-0") == used


@pytest.mark.parametrize("version", ["580.159.04", b"580.159.04"])
def test_the_drivers_version_is_text(monkeypatch: pytest.MonkeyPatch, version: str | bytes) -> None:
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: version)
    assert nvml.driver_version() == "580.159.04"


@pytest.mark.parametrize("name", ["NVIDIA H200", b"NVIDIA H200"])
def test_gpus(monkeypatch: pytest.MonkeyPatch, name: str | bytes) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: f"GPU-{handle}")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: name)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: types.SimpleNamespace(total=7))
    assert nvml.gpus() == [nvml.GpuInfo(f"GPU-{index}", "NVIDIA H200", 7, index) for index in range(2)]


@pytest.mark.parametrize("call", ["HandleByIndex", "UUID", "Name", "MemoryInfo"])
def test_of_gpus_of_which_one_is_lost_the_others_are_told_by_their_numbers(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    lost = {0}
    answers = {
        "HandleByIndex": lambda index: index,
        "UUID": lambda handle: f"GPU-{handle}",
        "Name": lambda handle: "NVIDIA H200",
        "MemoryInfo": lambda handle: types.SimpleNamespace(total=7),
    }

    def answer(name: str, which: int) -> object:
        if name == call and which in lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return answers[name](which)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    for name in answers:
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", functools.partial(answer, name))
    assert nvml.gpus() == [nvml.GpuInfo("GPU-1", "NVIDIA H200", 7, 1)]
    lost.add(1)
    with pytest.raises(nvml.NvmlError, match="lost"):
        nvml.gpus()


@pytest.mark.parametrize("library", [None, Path("/lib/libnvidia-ml.so.1")])
def test_the_library_of_a_driver_is_loaded_before_nvml_begins_and_nvml_ends_with_the_session(
    monkeypatch: pytest.MonkeyPatch, library: Path | None
) -> None:
    did: list[str] = []
    monkeypatch.setattr(nvml.ctypes, "CDLL", did.append)
    monkeypatch.setattr(nvml.pynvml, "nvmlInit", lambda: did.append("begins"))
    monkeypatch.setattr(nvml.pynvml, "nvmlShutdown", lambda: did.append("ends"))
    driver: Any = types.SimpleNamespace(nvml_library=lambda: library)
    with nvml.open_session(driver):
        assert did == [*([] if library is None else [str(library)]), "begins"]
    assert did[-1] == "ends"


def test_without_its_library_there_is_no_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvml.pynvml, "nvmlInit", lambda: None)
    driver: Any = types.SimpleNamespace(nvml_library=lambda: tmp_path / "none.so")
    with pytest.raises(nvml.NvmlError, match=r"none\.so.*: install or load the NVIDIA driver"):
        nvml.open_session(driver)
