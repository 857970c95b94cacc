"""Which GPUs are fit for work, by an NVML that a test steers: XIDs, GPUs that are lost, and how one looks in rounds."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pynvml
import pytest

from runlist.planes.interface import NodeGpu
from runlist.planes.nvidia import health
from runlist.planes.nvidia.health import Health
from runlist.planes.nvidia.plane import NvidiaPlane
from runlist.planes.nvidia.rm.transport import NvidiaDriver

# As they are to be: taken from the code they would hold whatever it says.
SETTLE_S = 10.0

WAIT_S = 1.0
GONE = "the driver has it no more"


class Nvml:
    """Two GPUs, of which a session sees those that were there when it was opened. Events are taken by whoever waits
    with a set that has their GPU.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.there = ["A", "B"]
        self.mig: dict[str, int] = {}
        """Of GPUs that can be in MIG mode: whether they are."""
        self.recovery: dict[str, int] = {}
        self.errors: dict[str, int] = {}
        """By a function, or by a function and a GPU."""
        self.coming: list[tuple[str | None, int]] = []
        """What is told at the next wait: a GPU, or None for one that cannot be told, and an XID."""
        self.sessions: list[list[str]] = []
        self.deaf: set[int] = set()
        """Sessions in which waiting fails, by their number."""
        self.open = self.sets = 0
        monkeypatch.setattr(health, "time", types.SimpleNamespace(monotonic=lambda: self.now, sleep=self.pass_time))
        monkeypatch.setattr(health, "_PCI", Path("/nowhere"))
        for name, function in {
            "nvmlInit": self.init,
            "nvmlShutdown": self.shutdown,
            "nvmlEventSetCreate": self.create,
            "nvmlEventSetFree": self.free,
            "nvmlDeviceRegisterEvents": lambda gpu, kinds, events: events.append(gpu),
            "nvmlEventSetWait_v2": self.wait,
            "nvmlDeviceGetCount": lambda: len(self.sessions[-1]),
            "nvmlDeviceGetHandleByIndex": lambda index: self.sessions[-1][index],
            "nvmlDeviceGetUUID": self.uuid,
            "nvmlDeviceGetMemoryInfo": lambda gpu: types.SimpleNamespace(total=ord(gpu)),
            "nvmlDeviceGetMinorNumber": lambda gpu: ord(gpu) - ord("A") + 4,
            "nvmlDeviceGetPciInfo": lambda gpu: types.SimpleNamespace(busId=f"00000000:0{gpu}:00.0"),
            "nvmlDeviceGetFieldValues": self.fields,
            "nvmlDeviceGetMigMode": self.mig_mode,
        }.items():
            monkeypatch.setattr(pynvml, name, self.failing(name, function))

    def failing(self, name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            gpu = self.sessions[-1][arguments[0]] if name == "nvmlDeviceGetHandleByIndex" else (*arguments, "")[0]
            code = self.errors.get(name, self.errors.get(f"{name} {gpu}"))
            if code is not None:
                raise pynvml.NVMLError(code)
            return function(*arguments)

        return call

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def init(self) -> None:
        self.open += 1
        self.sessions.append(list(self.there))

    def shutdown(self) -> None:
        self.open -= 1

    def create(self) -> list[str]:
        self.sets += 1
        return []

    def free(self, events: list[str]) -> None:
        del events
        self.sets -= 1

    def wait(self, events: list[str] | None, milliseconds: int) -> types.SimpleNamespace:
        if events is None or len(self.sessions) in self.deaf:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        for number, (gpu, xid) in enumerate(self.coming):
            if gpu is None or gpu in events:
                del self.coming[number]
                kind = pynvml.nvmlEventTypeXidCriticalError
                return types.SimpleNamespace(device=gpu, eventType=kind, eventData=xid)
        self.pass_time(milliseconds / 1000)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    def uuid(self, gpu: str | None) -> bytes:
        if gpu is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return f"GPU-{gpu}".encode()

    def mig_mode(self, gpu: str) -> list[int]:
        if gpu not in self.mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [self.mig[gpu], pynvml.NVML_DEVICE_MIG_DISABLE]  # now, and after the next reset

    def fields(self, gpu: str, wanted: list[int]) -> list[types.SimpleNamespace]:
        assert wanted == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        known = gpu in self.recovery
        code = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
        value = types.SimpleNamespace(uiVal=self.recovery.get(gpu, pynvml.NVML_GPU_RECOVERY_ACTION_NONE))
        return [types.SimpleNamespace(nvmlReturn=code, value=value)]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    return Nvml(monkeypatch)


@pytest.fixture
def watch(nvml: Nvml) -> Health:
    made = Health(NvidiaDriver())
    made.look(0.0)
    return made


def sick(gpus: list[NodeGpu]) -> dict[str, str]:
    return {gpu.uuid.removeprefix("GPU-"): gpu.sick for gpu in gpus}


def test_gpus_as_they_are_found(nvml: Nvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(health, "_PCI", tmp_path)
    for bus, node in (("0000:0a:00.0", 0), ("0000:0b:00.0", -1)):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "numa_node").write_text(f"{node}\n")
    watch = Health(NvidiaDriver())
    assert watch.look(0.0) == [NodeGpu("GPU-A", 0, 65, 4, 0), NodeGpu("GPU-B", 1, 66, 5, None)]
    nvml.errors = {"nvmlDeviceGetMinorNumber": pynvml.NVML_ERROR_NOT_SUPPORTED}
    assert Health(NvidiaDriver()).look(0.0)[0] == NodeGpu("GPU-A", 0, 65, None, 0)
    watch.close()
    watch.close()
    assert (nvml.open, nvml.sets) == (1, 1)  # the other one's


def test_a_round_takes_as_long_as_it_may_unless_there_is_news(nvml: Nvml, watch: Health) -> None:
    began = nvml.now
    assert sick(watch.look(WAIT_S)) == {"A": "", "B": ""}
    assert nvml.now - began == WAIT_S
    nvml.coming = [("B", 48), ("A", 79)]
    assert sick(watch.look(WAIT_S)) == {"A": "XID 79", "B": "XID 48"}
    assert nvml.now - began == WAIT_S
    assert len(nvml.sessions) == 1


def test_a_gpu_in_mig_mode_is_fit_for_nobody_who_wants_a_part_of_it(nvml: Nvml, watch: Health) -> None:
    nvml.mig = {"A": pynvml.NVML_DEVICE_MIG_ENABLE, "B": pynvml.NVML_DEVICE_MIG_DISABLE}
    found = sick(watch.look(WAIT_S))
    assert "MIG mode" in found["A"]
    assert found["B"] == ""
    nvml.mig["A"] = pynvml.NVML_DEVICE_MIG_DISABLE
    assert sick(watch.look(WAIT_S)) == {"A": "", "B": ""}


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])  # of docs/kubernetes.md
def test_a_programs_own_fault_makes_no_gpu_sick(nvml: Nvml, watch: Health, xid: int) -> None:
    nvml.coming = [("A", xid)]
    assert sick(watch.look(WAIT_S)) == {"A": "", "B": ""}


def test_an_xid_of_a_device_that_cannot_be_told_is_everybodys(nvml: Nvml, watch: Health) -> None:
    nvml.coming = [(None, 48)]
    assert sick(watch.look(WAIT_S)) == {"A": "XID 48", "B": "XID 48"}


def test_a_gpu_is_fit_again_when_the_driver_says_so_and_not_too_soon(nvml: Nvml, watch: Health) -> None:
    nvml.recovery = {"A": pynvml.NVML_GPU_RECOVERY_ACTION_NONE, "B": pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET}
    nvml.coming = [("A", 48), ("B", 48)]
    began = nvml.now
    while nvml.now + WAIT_S - began <= SETTLE_S:
        assert sick(watch.look(WAIT_S)) == {"A": "XID 48", "B": "XID 48"}
    assert sick(watch.look(WAIT_S)) == {"A": "", "B": "XID 48"}
    nvml.recovery["A"] = pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET
    assert sick(watch.look(WAIT_S)) == {"A": "", "B": "XID 48"}, "it was forgotten"
    nvml.recovery["B"] = pynvml.NVML_GPU_RECOVERY_ACTION_NONE
    assert sick(watch.look(WAIT_S)) == {"A": "", "B": ""}


@pytest.mark.parametrize("silent", ["this GPU", "the driver", "this library"])
def test_where_the_driver_does_not_say_what_is_to_be_done_a_gpu_stays_sick(
    nvml: Nvml, watch: Health, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    if silent == "the driver":
        nvml.errors = {"nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    if silent == "this library":
        monkeypatch.delattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")
    nvml.coming = [("A", 48)]
    watch.look(WAIT_S)
    nvml.now += 10 * SETTLE_S
    assert sick(watch.look(WAIT_S)) == {"A": "XID 48", "B": ""}


def test_a_driver_that_tells_no_xids_is_looked_at_all_the_same(nvml: Nvml) -> None:
    nvml.errors = {"nvmlEventSetCreate": pynvml.NVML_ERROR_NOT_SUPPORTED}
    watch = Health(NvidiaDriver())
    began = nvml.now
    assert [sick(watch.look(WAIT_S)) for _ in range(3)] == [{"A": "", "B": ""}] * 3
    assert nvml.now - began >= 2 * WAIT_S
    assert len(nvml.sessions) == 1


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_GPU_IS_LOST])
def test_a_gpu_that_tells_no_xids_does_not_keep_others_from_it(nvml: Nvml, code: int) -> None:
    nvml.errors = {"nvmlDeviceRegisterEvents A": code}
    watch = Health(NvidiaDriver())
    watch.look(0.0)
    nvml.coming = [("B", 48)]
    assert sick(watch.look(WAIT_S)) == {"A": "", "B": "XID 48"}


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"])
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN])
def test_a_gpu_that_does_not_answer_is_sick_and_no_other_is(nvml: Nvml, watch: Health, call: str, code: int) -> None:
    nvml.errors = {f"{call} A": code}
    for _ in range(3):
        found = watch.look(WAIT_S)
        assert sick(found) == {"A": GONE, "B": ""}
        assert [gpu.index for gpu in found] == [0, 1]


def test_while_a_gpu_is_missing_one_looks_in_rounds_and_hears_of_the_others(nvml: Nvml, watch: Health) -> None:
    nvml.errors = {"nvmlDeviceGetHandleByIndex B": pynvml.NVML_ERROR_GPU_IS_LOST}
    nvml.there = ["A"]
    watch.look(WAIT_S)
    began = nvml.now
    assert [sick(watch.look(WAIT_S)) for _ in range(10)] == [{"A": "", "B": GONE}] * 10
    assert nvml.now - began == pytest.approx(10 * WAIT_S)
    nvml.coming = [("A", 48)]
    assert sick(watch.look(WAIT_S)) == {"A": "XID 48", "B": GONE}
    assert nvml.open == 1


def test_a_gpu_that_comes_back_is_seen_and_was_reset(nvml: Nvml, watch: Health) -> None:
    nvml.coming = [("B", 79), ("A", 48)]
    watch.look(WAIT_S)
    nvml.errors = {"nvmlDeviceGetHandleByIndex B": pynvml.NVML_ERROR_GPU_IS_LOST}
    assert sick(watch.look(WAIT_S)) == {"A": "XID 48", "B": "XID 79"}
    nvml.there, nvml.errors = ["B", "A"], {}
    assert sick(watch.look(WAIT_S)) == {"A": "XID 48", "B": ""}
    assert [(gpu.uuid, gpu.index) for gpu in watch.look(WAIT_S)] == [("GPU-B", 0), ("GPU-A", 1)]


def test_a_lost_gpu_of_which_only_the_events_tell_makes_no_other_sick(nvml: Nvml, watch: Health) -> None:
    nvml.deaf = set(range(11))
    began = nvml.now
    assert [sick(watch.look(WAIT_S)) for _ in range(10)] == [{"A": "", "B": ""}] * 10
    assert nvml.now - began == pytest.approx(10 * WAIT_S), "no faster than it was asked to"
    assert nvml.open == 1
    nvml.coming = [("A", 48)]
    assert sick(watch.look(WAIT_S)) == {"A": "XID 48", "B": ""}


def test_an_nvml_that_does_not_answer_is_asked_in_rounds_until_it_does(nvml: Nvml, watch: Health) -> None:
    nvml.coming = [("A", 48)]
    watch.look(WAIT_S)
    nvml.errors = {"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "nvmlDeviceGetCount": pynvml.NVML_ERROR_UNKNOWN}
    found = sick(watch.look(WAIT_S))
    assert found["A"] == "XID 48"
    assert found["B"].startswith("NVML: ")
    began = nvml.now
    for _ in range(10):
        watch.look(WAIT_S)
    assert nvml.now - began >= 9 * WAIT_S  # another reason is news
    assert (nvml.open, nvml.sets) == (0, 0)
    nvml.errors = {"nvmlDeviceGetCount": pynvml.NVML_ERROR_UNKNOWN}
    for _ in range(10):
        watch.look(WAIT_S)
    assert nvml.now - began >= 18 * WAIT_S
    nvml.errors = {}
    assert sick(watch.look(WAIT_S)) == {"A": "", "B": ""}, "the driver was loaded anew"


@pytest.mark.parametrize("call", ["nvmlDeviceGetCount", "nvmlInit"])
def test_an_nvml_that_fails_while_the_driver_is_there_makes_no_gpu_fit(nvml: Nvml, watch: Health, call: str) -> None:
    nvml.coming = [("A", 48)]
    watch.look(WAIT_S)
    nvml.errors = {call: pynvml.NVML_ERROR_UNKNOWN}
    if call == "nvmlInit":
        watch.close()
    for _ in range(3):
        assert sick(watch.look(WAIT_S))["A"] == "XID 48"
    nvml.errors = {}
    fit_again = {"nvmlDeviceGetCount": "XID 48", "nvmlInit": ""}  # without a driver: it was loaded anew
    assert sick(watch.look(WAIT_S)) == {"A": fit_again[call], "B": ""}
    made = NvidiaPlane(NvidiaDriver()).watch_gpus()
    assert sick(made.look(0.0)) == {"A": "", "B": ""}


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"])
@pytest.mark.parametrize(
    ("code", "after"), [(pynvml.NVML_ERROR_UNKNOWN, "XID 48"), (pynvml.NVML_ERROR_GPU_IS_LOST, "")]
)
def test_a_gpu_that_did_not_answer_once_is_not_fit_by_that_and_one_that_was_lost_was_reset(
    nvml: Nvml, watch: Health, call: str, code: int, after: str
) -> None:
    nvml.coming = [("A", 48)]
    assert sick(watch.look(WAIT_S)) == {"A": "XID 48", "B": ""}
    nvml.errors = {f"{call} A": code}
    assert sick(watch.look(WAIT_S)) == {"A": "XID 48", "B": ""}
    nvml.errors = {}
    assert sick(watch.look(WAIT_S)) == {"A": after, "B": ""}
