"""The emulated NVML's figures of utilisation, against kernels whose time is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pytest

from runlist.emulated import EmulatedGpu
from tests.emulated import raw
from tests.fixtures.daemon import wait_for

FreshGpu = Callable[..., EmulatedGpu]

KERNEL_S = 0.574e-9 * 64 * 20000
PERIOD_US = 200_000

PROGRAM = """
module = begin(int(os.environ.get("GPU", "0")))
n, rounds = 1056 * 256, 20000
data = alloc(4 * n)
f = kernel(module, b"accumulate_lcg")
flag = int(ok(cu.cuMemHostAlloc(64, 2)))
ctypes.c_uint32.from_address(flag).value = 0
wait = kernel(module, b"wait_flag_u32")
ok(cu.cuCtxSynchronize())
say("ready")
for line in sys.stdin:
    seconds, busy, pause = map(float, line.split())
    begin_at, count = time.monotonic(), 0
    while time.monotonic() - begin_at < seconds:
        if busy < 0:  # a kernel that does nothing but wait
            launch(wait, (1,), (1,), (U64, U32), flag, 1)
            time.sleep(seconds)
            ctypes.c_uint32.from_address(flag).value = 1
        for _ in range(int(busy)):
            launch(f, (1056,), (256,), (U64, U64, U32), data, n, rounds)
            count += 1
        ok(cu.cuCtxSynchronize())
        time.sleep(pause)
    say(count, time.monotonic() - begin_at)
"""

ASK = """
import json, sys, pynvml as n
n.nvmlInit()
def ask(index, since):
    gpu = n.nvmlDeviceGetHandleByIndex(index)
    try:
        kind, samples = n.nvmlDeviceGetSamples(gpu, n.NVML_GPU_UTILIZATION_SAMPLES, since)
        assert kind == n.NVML_VALUE_TYPE_UNSIGNED_INT
    except n.NVMLError_NotFound:
        samples = []
    try:
        processes = n.nvmlDeviceGetProcessUtilization(gpu, since)
    except n.NVMLError_NotFound:
        processes = []
    return {
        "gpu": [[s.timeStamp, s.sampleValue.uiVal] for s in samples],
        "processes": {p.pid: [p.timeStamp, p.smUtil] for p in processes},
        "rate": n.nvmlDeviceGetUtilizationRates(gpu).gpu,
    }
for line in sys.stdin:
    print(json.dumps(ask(*json.loads(line))), flush=True)
"""


class Nvml:
    """NVML in a process of its own: the library of this one may be another."""

    def __init__(self, gpu: EmulatedGpu) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ASK],
            env={**os.environ, **gpu.environment()}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, since: int = 0, index: int = 0) -> tuple[list[tuple[int, int]], dict[int, tuple[int, int]], int]:
        """The GPU's samples (µs since the epoch, percent), the processes' newest by pid, and the GPU's rate."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([index, since]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        processes = {int(pid): (at, percent) for pid, (at, percent) in answer["processes"].items()}
        return [(at, percent) for at, percent in answer["gpu"]], processes, answer["rate"]


@contextmanager
def nvml_of(gpu: EmulatedGpu) -> Iterator[Nvml]:
    nvml = Nvml(gpu)
    try:
        yield nvml
    finally:
        nvml.process.kill()
        nvml.process.communicate()


job = partial(raw.job, PROGRAM)


def measured(running: raw.Running, seconds: float, kernels: int, pause: float) -> float:
    """Has it work for so long; the seconds of its kernels."""
    running.tell(f"{seconds} {kernels} {pause}")
    return int(running.line().split()[0]) * KERNEL_S


def test_samples_add_up_to_the_time_of_the_kernels(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with nvml_of(gpu) as nvml, job(gpu) as running:
        busy = measured(running, 2.0, 20, 0.015)
        time.sleep(0.25)
        samples, processes, rate = nvml.ask()
        assert len(samples) == 70
        gaps = [second[0] - first[0] for first, second in pairwise(samples)]
        assert gaps == pytest.approx([PERIOD_US] * 69, abs=1000)
        assert time.time() * 1e6 - samples[-1][0] < PERIOD_US + 100_000
        assert sum(percent for _, percent in samples) / 100 * PERIOD_US / 1e6 == pytest.approx(busy, rel=0.05)
        assert 0 < max(percent for _, percent in samples) <= 100
        assert set(processes) == {running.pid}
        assert processes[running.pid][1] > 0
        time.sleep(0.2)
        assert nvml.ask()[2] == 0  # idle since
        assert rate in (0, samples[-1][1])


def test_only_what_is_newer_is_told(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with nvml_of(gpu) as nvml, job(gpu) as running:
        measured(running, 0.5, 20, 0)
        samples, processes, _ = nvml.ask()
        seen = samples[-3][0]
        later = nvml.ask(seen)[0]
        assert 2 <= len(later) <= 3
        assert all(at > seen for at, _ in later)
        assert running.pid not in nvml.ask(processes[running.pid][0] + PERIOD_US)[1]
        time.sleep(0.25)
        assert nvml.ask(int(time.time() * 1e6) + 10**6)[:2] == ([], {})


def test_two_jobs_share_what_the_gpu_does(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu(gpus=2)
    with nvml_of(gpu) as nvml, job(gpu) as one, job(gpu) as two, job(gpu, GPU="1") as elsewhere:
        for running in (one, two):
            running.tell("3 40 0")
        wait_for(lambda: set(nvml.ask()[1]) == {one.pid, two.pid}, "both to work")
        time.sleep(0.5)
        samples, processes, rate = nvml.ask()
        assert set(processes) == {one.pid, two.pid}
        assert rate == samples[-1][1]
        shares = [percent for _, percent in processes.values()]
        assert sum(shares) == pytest.approx(samples[-1][1], abs=4)
        assert min(shares) > 25
        samples, processes, rate = nvml.ask(index=1)
        assert (processes, rate, {percent for _, percent in samples}) == ({}, 0, {0})
        for running in (one, two):
            running.line()
        assert elsewhere.process.poll() is None


def test_a_kernel_that_waits_is_a_kernel_that_runs(fresh_gpu: FreshGpu) -> None:
    gpu = fresh_gpu()
    with nvml_of(gpu) as nvml, job(gpu) as running:
        running.tell("0.7 -1 0")
        running.line()
        assert max(percent for _, percent in nvml.ask()[0]) > 95
