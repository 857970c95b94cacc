"""How soon a slice is put back that a managed process, or who has its file, set itself.

With the kernel plane the daemon hears of it; RUNLIST_KERNEL_PLANE=off measures how soon asking finds it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.harness.contexts import contexts_of
from bench.harness.daemon import started
from bench.harness.figures import AT_MOST, Figure, p99, spread
from bench.harness.ioctl_file import ioctl_file
from runlist.client import Client
from runlist.planes.nvidia.context import GpuContext
from runlist.planes.nvidia.rm.commands import COMMANDS, NVOS54_CONTROL
from runlist.planes.registry import choose_plane
from runlist.protocol import environment_autogen as names
from runlist.workloads.process import WorkloadProcess

CHANGES = 200
WRONG_US = 5000
_PATIENCE_S = 10.0
_LOADED_S = 3.0  # until the kernel's programs are there


def measure(changes: int = CHANGES) -> list[Figure]:
    """Change the slice of a managed batch job so many times, and ask the driver until it is what it was."""
    with ExitStack() as stack:
        os.environ.setdefault(names.KERNEL_PLANE, "on")
        twin = _twin(stack)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(started(folder, "runlist.daemon"))  # one that knows of the twin
        client = stack.enter_context(Client.open())
        time.sleep(_LOADED_S)
        job = stack.enter_context(WorkloadProcess("batch"))
        job.run()
        client.attach(job.pid, "batch")
        (context,) = contexts_of(job.pid, stack)
        group = next(iter(context.groups))
        ours = context.timeslices()[group]
        took = []
        for _ in range(changes):
            began = time.perf_counter()
            context.rm.control(group, "SET_TIMESLICE", timeslice_us=WRONG_US)
            if twin is not None:
                _repeat(twin, context, group)
            took.append(_until(context, group, ours, began))
            time.sleep(0.01)
    details = {**spread(took), "kernel plane": os.environ[names.KERNEL_PLANE]}
    return [Figure("an own slice is put back, p99", p99(took), AT_MOST, 5, "ms", details)]


def _until(context: GpuContext, group: int, wanted: int, began: float) -> float:
    """Milliseconds until the driver has this slice."""
    while context.timeslices()[group] != wanted:
        if time.perf_counter() - began > _PATIENCE_S:
            raise RuntimeError(f"the slice was not put back in {_PATIENCE_S:g} s")
    return (time.perf_counter() - began) * 1e3


def _twin(stack: ExitStack) -> int | None:
    """On the emulated GPU, a descriptor of the file on which the kernel sees requests (docs/emulated-gpu.md)."""
    if choose_plane().name != names.EMULATED:
        return None
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    path = stack.enter_context(ioctl_file(folder / "twin"))
    os.environ[names.EMULATED_TWIN] = str(path)
    stack.callback(os.environ.pop, names.EMULATED_TWIN)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _repeat(twin: int, context: GpuContext, group: int) -> None:
    value = ctypes.c_uint64(WRONG_US)
    command = COMMANDS["SET_TIMESLICE"].number
    argument = NVOS54_CONTROL.pack(
        client=context.client, object=group, command=command, params=ctypes.addressof(value), params_size=8
    )
    fcntl.ioctl(twin, 3 << 30 | len(argument) << 16 | ord("F") << 8 | 0x2A, argument, True)
