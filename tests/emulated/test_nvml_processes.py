"""The emulated NVML's lists of processes, in every version that tools ask for, and what it says of memory limits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from runlist.emulated import EmulatedGpu
from tests.emulated import raw

FreshGpu = Callable[..., EmulatedGpu]

HOLDER = 'begin()\nalloc(5 << 20)\nsay("ready")\nsys.stdin.readline()\n'

LOOK = """
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
def show(kind, call):
    for p in call(gpu):
        say(kind, p.pid, p.usedGpuMemory, getattr(p, "gpuInstanceId", None))
for name in ("Compute", "MPSCompute", "Graphics"):
    for version in ("_v2", "_v3"):
        show(name + version, getattr(n, f"nvmlDeviceGet{name}RunningProcesses{version}"))
class Old(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong)]
lib = ctypes.CDLL("libnvidia-ml.so.1")
assert lib.nvmlInit_v2() == 0
for name in ("Compute", "MPSCompute", "Graphics"):
    ask = getattr(lib, f"nvmlDeviceGet{name}RunningProcesses")
    count = ctypes.c_uint(0)
    first = ask(gpu, ctypes.byref(count), None)
    assert first == (n.NVML_ERROR_INSUFFICIENT_SIZE if count.value else 0)
    infos = (Old * count.value)()
    assert ask(gpu, ctypes.byref(count), infos) == 0
    for info in infos:
        say(name, info.pid, info.memory, None)
"""


def listed(env: dict[str, str]) -> dict[str, set[tuple[int, int]]]:
    """By version of the call: process id and bytes."""
    found: dict[str, set[tuple[int, int]]] = {}
    for line in raw.run(env, LOOK):
        kind, pid, memory, _ = line.split()
        found.setdefault(kind, set()).add((int(pid), int(memory)))
    return found


def test_every_version_lists_the_same(fresh_gpu: FreshGpu, tmp_path: Path) -> None:
    env = {**os.environ, **fresh_gpu().environment()}
    plain = raw.Running(env, HOLDER)
    client = raw.Running({**env, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, HOLDER)
    assert plain.line() == client.line() == "ready"
    found = listed(env)
    assert set(found) == {"Compute", "Compute_v2", "Compute_v3", "MPSCompute", "MPSCompute_v2", "MPSCompute_v3"}
    assert found["Compute"] == found["Compute_v2"] == found["Compute_v3"]
    assert found["MPSCompute"] == found["MPSCompute_v2"] == found["MPSCompute_v3"]
    memory = dict(found["Compute"])
    assert set(memory) == {plain.pid, client.pid}
    assert min(memory.values()) >= 5 << 20
    assert {pid for pid, _ in found["MPSCompute"]} == {client.pid}
    plain.end()
    client.end()
    assert listed(env) == {}


def test_names_of_processes_and_limits(fresh_gpu: FreshGpu) -> None:
    env = {**os.environ, **fresh_gpu().environment()}
    program = """
import pynvml as n
n.nvmlInit()
say(n.nvmlSystemGetProcessName(os.getpid()))
try:
    n.nvmlSystemGetProcessName(0x7FFFFFF0)
except n.NVMLError_NotFound:
    say("none")
lib = ctypes.CDLL("libnvidia-ml.so.1")
gpu = n.nvmlDeviceGetHandleByIndex(0)
assert lib.nvmlInit_v2() == 0
short = ctypes.create_string_buffer(4)
say(lib.nvmlSystemGetProcessName(os.getpid(), short, 4), len(short.value))
limits = ctypes.create_string_buffer(256)
for call in (lib.nvmlDeviceGetMemoryLimits_v1, lib.nvmlDeviceSetMemoryLimits_v1):
    say(call(gpu, limits) == n.NVML_ERROR_NOT_SUPPORTED, call(gpu, None) == n.NVML_ERROR_INVALID_ARGUMENT)
"""
    name, *rest = raw.run(env, program)
    assert "python" in name
    assert rest == ["none", "0 3", "True True", "True True"]


def test_what_tools_ask_of_a_card_that_is_not_modelled(fresh_gpu: FreshGpu) -> None:
    """As nvitop, gpustat and the like ask: a function that is missing is a driver that is too old for them."""
    env = {**os.environ, **fresh_gpu().environment()}
    program = """
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
part = n.nvmlDeviceIsMigDeviceHandle(gpu)  # some versions give the C variable
say(getattr(part, "value", part), n.nvmlDeviceGetComputeMode(gpu), n.nvmlDeviceGetCudaComputeCapability(gpu))
version = ctypes.c_int()
assert ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0
say(n.nvmlSystemGetCudaDriverVersion() == n.nvmlSystemGetCudaDriverVersion_v2() == version.value)
asked = {
    "ClockInfo": [n.NVML_CLOCK_SM], "ConfComputeMemSizeInfo": [], "DecoderUtilization": [], "DisplayActive": [],
    "CurrentDriverModel": [], "DisplayMode": [], "EncoderUtilization": [], "EnforcedPowerLimit": [], "FanSpeed": [],
    "MaxClockInfo": [n.NVML_CLOCK_MEM], "MigMode": [], "PcieThroughput": [n.NVML_PCIE_UTIL_TX_BYTES], "PciInfo": [],
    "PerformanceState": [], "PersistenceMode": [], "PowerManagementLimit": [], "PowerUsage": [],
    "Temperature": [n.NVML_TEMPERATURE_GPU], "TotalEccErrors": [0, 0],
}
for name, words in asked.items():
    try:
        say(name, getattr(n, "nvmlDeviceGet" + name)(gpu, *words))
    except n.NVMLError_NotSupported:
        pass
    except n.NVMLError as error:
        say(name, error)
"""
    assert raw.run(env, program) == ["0 0 (9, 0)", "True"]
